"""scripts/release.sh: its refusals, and, slow, its files."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
UNRELEASED = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Something.\n"
RELEASED = (
    "# Changelog\n\n## [0.1.0] - 2026-11-25\n\n### Added\n\n- Something.\n\n## [0.0.9] - 2026-01-01\n\n- Older.\n"
)


class Clone:
    """A small git repository with the script and the files that it reads before it builds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        shutil.copytree(ROOT / "scripts/release", self.folder / "scripts/release")
        shutil.copy(ROOT / "scripts/release.sh", self.folder / "scripts")
        shutil.copy(ROOT / "CMakeLists.txt", self.folder)
        self.git("init", "--quiet")
        self.commit(RELEASED)

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *arguments], cwd=self.folder, check=True, timeout=30, capture_output=True)

    def commit(self, changelog: str) -> None:
        (self.folder / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=A commit")

    def check(self, *arguments: str, pythons: str = PYTHON) -> subprocess.CompletedProcess[str]:
        """Return the errors of release.sh before it builds anything."""
        return run_release(self.folder, "--check", "--pythons", pythons, *arguments, limit_s=60)


def run_release(folder: Path, *arguments: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """release.sh, which finds the tests' interpreter as pythonX.Y."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [str(folder / "scripts/release.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=limit_s)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    return Clone(tmp_path)


def test_what_agrees_is_in_order(clone: Clone) -> None:
    clone.git("tag", "v0.1.0")
    for arguments in ([], ["--tag", "v0.1.0"]):
        result = clone.check(*arguments)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == "release: 0.1.0 is in order\n"


def test_a_tag_of_another_version_is_refused(clone: Clone) -> None:
    result = clone.check("--tag", "v0.2.0")
    assert result.returncode == 1
    assert "the tag is 'v0.2.0', and the version in CMakeLists.txt is 0.1.0: its tag would be 'v0.1.0'" in result.stderr
    clone.git("tag", "0.1.0")  # of HEAD, and not spelled as releases are
    result = clone.check()
    assert result.returncode == 1
    assert "the tag is '0.1.0'" in result.stderr


def test_a_changelog_without_the_version_is_refused(clone: Clone) -> None:
    clone.commit(UNRELEASED)
    result = clone.check()
    assert result.returncode == 1
    assert "newest heading should be '## [0.1.0] - YYYY-MM-DD', it is [none]" in result.stderr
    assert "entries below [Unreleased]" in result.stderr
    clone.commit(RELEASED.replace("[0.1.0]", "[0.1.1]"))
    assert "it is [0.1.1] - 2026-11-25" in clone.check().stderr
    clone.commit(RELEASED.replace("2026-11-25", "unreleased"))
    assert "it is [0.1.0] - unreleased: write this version and date there" in clone.check().stderr
    assert clone.check("--draft").returncode == 0


def test_an_empty_unreleased_section_may_stay(clone: Clone) -> None:
    clone.commit(RELEASED.replace("## [0.1.0]", "## [Unreleased]\n\n## [0.1.0]"))
    assert clone.check().returncode == 0


@pytest.mark.parametrize("name", ["CMakeLists.txt", "new.txt"])
def test_changes_that_no_commit_has_are_refused(clone: Clone, name: str) -> None:
    with (clone.folder / name).open("a", encoding="utf-8") as file:
        file.write("\n")
    result = clone.check()
    assert result.returncode == 1
    assert "the tree has changes" in result.stderr
    assert clone.check("--draft").returncode == 0


def test_interpreters_that_are_missing_are_named(clone: Clone) -> None:
    result = clone.check(pythons=f"3.98 {PYTHON} 3.99")
    assert result.returncode == 1
    assert "no interpreter with C headers for Python 3.98 3.99" in result.stderr
    assert "--pythons" in result.stderr


@pytest.mark.parametrize("arguments", [["--upload"], ["--tag"]])
def test_options_that_are_none_are_refused(clone: Clone, arguments: list[str]) -> None:
    result = clone.check(*arguments)
    assert result.returncode == 1
    assert result.stderr.startswith("release: ")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_is_made_is_installed_and_runs(tmp_path: Path) -> None:
    """In a copy of the tree, as dist/ may have a release; on request only, as all is compiled without a cache."""
    if "THC_TEST_RELEASE" not in os.environ:
        pytest.skip("THC_TEST_RELEASE=1 compiles everything anew, as scripts/release.sh does")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("git is not installed, or this is no clone")
    folder = tmp_path / "tree"
    for name in listed.strip("\0").split("\0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, "commit", "--quiet", "--message=A commit"], cwd=folder, check=True)
    made = run_release(folder, "--draft", "--pythons", PYTHON, "--torch", PYTHON, limit_s=1700)
    if "No matching distribution" in made.stderr or "Could not find a version" in made.stderr:
        pytest.skip("no package index here")
    assert made.returncode == 0, made.stdout + made.stderr
    assert "DDP with two ranks" in made.stdout
    dist = folder / "dist"
    version = re.findall(r"VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    tag = f"cp{PYTHON.replace('.', '')}"
    wheel = dist / f"byteps_thc-{version}-{tag}-{tag}-manylinux_2_34_{platform.machine()}.whl"
    assert {path.name for path in dist.iterdir()} == {"SHA256SUMS", wheel.name, f"byteps_thc-{version}.tar.gz"}
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, check=True, capture_output=True)
    assert not [name for name in ZipFile(wheel).namelist() if "libthc_dpdk" in name or ".libs/" in name]
