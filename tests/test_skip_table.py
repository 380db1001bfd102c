"""CI's table of skipped tests, and the tests that its time limit skips (tests/lib/skip_table.py, .ci/run)."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
def test_runs(): pass
@pytest.mark.skip("no GPU")
@pytest.mark.parametrize("number", range(3))
def test_skipped(number): pass
"""
#: Records the steps of CI. Python tests run in no time, and skip $LATE. A conftest.py of testpaths has CI's options.
MAKE = f"""#!/usr/bin/env bash
echo "$1" >>steps
[[ $1 == test-slow ]] || exit 0
{sys.executable} -m pytest --markers ${{2#ARGS=}} >&2 || exit
cp build/ci/python first
for file in $LATE; do echo "$file"; done >build/ci/python
"""
SCRIPT = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >>steps
"""
HOUR_S = 3600


def summary(folder: Path, *arguments: str) -> list[list[str]]:
    """Words of the lines that pytest prints about skipped tests."""
    (folder / "test_kinds.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "skip_table", "-p", "no:cacheprovider", "-q", *arguments]
    environment = {"CI": "true", "PYTHONPATH": str(ROOT / "tests/lib")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    return [line.split() for line in result.stdout.splitlines()]


def test_reasons_are_counted(tmp_path: Path) -> None:
    lines = summary(tmp_path, "--end-at", str(int(time.time()) + 1000))
    assert ["3", "no", "GPU"] in lines
    assert lines[-1][:2] == ["1", "passed,"]


def test_files_that_the_time_limit_leaves_out_are_listed(tmp_path: Path) -> None:
    (tmp_path / "test_again.py").write_text("def test_runs(): pass")
    left_out = tmp_path / "left_out"
    left_out.write_text("test_kinds.py\ntest_removed.py\n")
    lines = summary(tmp_path, "--end-at", str(int(time.time())), "--left-out", str(left_out))
    assert ["5", "not", "run:", "the", "time", "was", "up", "(--end-at)"] in lines
    assert ["4", "test_kinds.py"] in lines
    assert left_out.read_text().splitlines() == ["test_kinds.py", "test_again.py"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A commit with CI's script, and stand-ins of all that it starts."""
    checkout = tmp_path / "checkout"
    for name, text in {"bin/make": MAKE, "scripts/cpp_tests.sh": SCRIPT, "scripts/fuzz.sh": SCRIPT}.items():
        file = checkout / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    shutil.copytree(ROOT / ".ci", checkout / ".ci")
    (checkout / "test_long.py").write_text("@pytest.mark.slow")
    (checkout / "pytest.ini").write_text("[pytest]\ntestpaths = tests")
    (checkout / "tests").mkdir()
    (checkout / "tests/conftest.py").write_text("from skip_table import pytest_addoption")
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=checkout, check=True)
    return checkout


def ci(checkout: Path, *, late: str = "", after_s: int = 0) -> tuple[int, list[str], list[str]]:
    """Run CI; its exit code, the long tests in their order, and the end of its output.

    late: Python test files for which no time is left. after_s: seconds that have gone by when CI starts.
    """
    (checkout / "steps").unlink(missing_ok=True)
    path = f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "XDG_CACHE_HOME": str(checkout / "cache"), "SECONDS": str(after_s), "LATE": late}
    variables["PYTHONPATH"] = str(ROOT / "tests/lib")
    run = subprocess.run(["bash", ".ci/run"], cwd=checkout, env=os.environ | variables, capture_output=True, text=True)
    lint, test, *steps = (checkout / "steps").read_text().splitlines()
    assert (lint, test) == ("lint", "test"), run.stderr
    return run.returncode, steps, [line.strip() for line in run.stdout.splitlines()]


def test_ci_begins_with_what_the_last_run_left_out(checkout: Path) -> None:
    presets = [f"cpp_tests.sh {preset}" for preset in ("aarch64", "asan-ubsan", "tsan")]
    code, steps, _ = ci(checkout)
    assert (code, sorted(steps)) == (0, sorted([*presets, "fuzz.sh ", "test-slow"]))
    assert (checkout / "first").read_text() == "test_long.py\n"
    code, _, printed = ci(checkout, late="a.py b.py")
    assert code == 0
    assert printed[-3].startswith("INCOMPLETE")
    assert printed[-2:] == ["python a.py", "python b.py"]
    code, steps, printed = ci(checkout, after_s=HOUR_S)
    assert (code, steps) == (0, ["test-slow"])
    assert (checkout / "first").read_text() == "a.py\nb.py\n"
    assert sorted(printed[-4:]) == ["aarch64", "asan-ubsan", "fuzz", "tsan"]


def test_what_ci_leaves_out_twice_in_a_row_fails(checkout: Path) -> None:
    assert [ci(checkout, late=late)[0] for late in ("a.py b.py", "c.py", "b.py a.py", "")] == [0, 0, 0, 0]
    ci(checkout, late="a.py b.py")
    code, _, printed = ci(checkout, late="b.py c.py")
    assert code == 3
    assert printed[-1] == "python b.py"
    assert printed[-2].startswith("FAILED")


def test_ci_fails_with_a_part(checkout: Path) -> None:
    (checkout / "scripts/fuzz.sh").write_text("#!/usr/bin/env bash\nexit 5")
    assert ci(checkout)[0] == 5
