"""A copy of the working tree in which faults are tried; the working tree itself is never changed."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults import Fault

REPOSITORY = Path(__file__).parents[2]
#: Ignored by git, removed by make clean; kept between runs for its build.
ROOT = REPOSITORY / "build" / "mutation"
BUILD = ROOT / "build" / "release"
PYTHON = ROOT / ".venv" / "bin" / "python"
#: Parts of the build that Python tests use.
USED_FROM_PYTHON = ("_core", "_core_test", "_comm", "thc-ps")


class BuildError(Exception):
    """The tree does not build; the message is the end of the compiler's output."""


def refresh() -> None:
    """Copy the working tree. Files that have not changed keep their times."""
    listed = _output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], REPOSITORY)
    wanted = {name for name in listed.split("\0") if name and (REPOSITORY / name).is_file()}
    for name in sorted(wanted):
        source, copy = REPOSITORY / name, ROOT / name
        content = source.read_bytes()
        if not copy.is_file() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    for path in list(ROOT.rglob("*")):
        place = path.relative_to(ROOT)
        is_kept = place.parts[0] in ("build", ".venv") or path.suffix == ".so" or str(place) in wanted
        if path.is_file() and not is_kept:
            path.unlink()


def commit() -> str:
    """Return the commit that the working tree is of."""
    return _output(["git", "rev-parse", "--short", "HEAD"], REPOSITORY).strip()


def configure() -> None:
    """Configure the release build of the copy, with the Python modules and without benchmarks."""
    pybind11 = _output([sys.executable, "-m", "pybind11", "--cmakedir"], ROOT).strip()
    options = ["-DTHC_BUILD_PYTHON=ON", "-DTHC_BUILD_TEST_MODULE=ON", "-DTHC_BUILD_BENCHMARKS=OFF"]
    python = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11}"]
    _build(["cmake", "--preset", "release", *options, *python])


def build(*targets: str) -> None:
    """Build these targets; BuildError if that fails."""
    _build(["cmake", "--build", "--preset", "release", "--target", *targets])


def make_environment() -> None:
    """Make an environment whose Python finds the copied sources, their build, and this Python's packages.

    An environment and not PYTHONPATH: some tests give the programs that they start another one.
    """
    if not PYTHON.exists():
        venv.create(PYTHON.parents[1])
    packages = sysconfig.get_path("purelib", vars={"base": str(PYTHON.parents[1])})
    folders = (ROOT, ROOT / "lab", ROOT / "p4", ROOT / "p4" / "thc_p4_model" / "src", sysconfig.get_path("purelib"))
    (Path(packages) / "mutation.pth").write_text("".join(f"{folder}\n" for folder in folders), encoding="utf-8")
    _link(PYTHON.with_name("thc-ps"), BUILD / "ps_software" / "thc-ps")
    for module in BUILD.rglob("_co*.so"):
        folder = Path(packages) if module.name.startswith("_core_test") else ROOT / "byteps_thc" / "_native"
        _link(folder / module.name, module)


def environment() -> dict[str, str]:
    """Environment of the tests."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "THC_PS")}
    # Two versions of a file may have the same second and size.
    return {**inherited, "PYTHONDONTWRITEBYTECODE": "1", "LD_LIBRARY_PATH": str(BUILD / "lib")}


@contextmanager
def with_fault(fault: Fault) -> Iterator[None]:
    """Apply the fault to the copy, and take it back in the end."""
    path = ROOT / fault.file
    before = path.read_bytes() if path.is_file() else b""
    fault.apply(ROOT)
    try:
        yield
    finally:
        path.write_bytes(before)


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _build(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError("\n".join((done.stdout + done.stderr).splitlines()[-20:]))


def _output(command: list[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
