"""The steps of make byteps that need no compiler; that it builds is seen by the tests that run BytePS."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import pytest
from byteps_build import source, stamp, toolchain
from byteps_build.commands import run
from byteps_build.errors import BuildError
from byteps_build.substitutions import SUBSTITUTIONS, Substitution, apply


def tree(folder: Path, text: str) -> Path:
    (folder / "setup.py").write_text(text, encoding="utf-8")
    return folder


def test_substitutions_replace_every_occurrence(tmp_path: Path) -> None:
    apply(
        tree(tmp_path, "a b a"),
        [Substitution("setup.py", "a", "c", "why", 2), Substitution("setup.py", "b", "d", "why")],
    )
    assert (tmp_path / "setup.py").read_text(encoding="utf-8") == "c d c"


@pytest.mark.parametrize("text", ["nothing", "a", "a a a"])
def test_a_pattern_found_too_often_or_too_seldom_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(BuildError, match=r"setup\.py: found 'a' \d times instead of 2.*the reason"):
        apply(tree(tmp_path, text), [Substitution("setup.py", "a", "b", "the reason", 2)])
    assert (tmp_path / "setup.py").read_text(encoding="utf-8") == text


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not in BytePS's source"):
        apply(tmp_path, [Substitution("setup.py", "a", "b", "why")])


def test_each_substitution_has_a_reason_and_changes_something() -> None:
    for substitution in SUBSTITUTIONS:
        assert substitution.why
        assert substitution.pattern != substitution.replacement


def test_another_source_package_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "byteps.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("byteps/setup.py"), io.BytesIO())
    with pytest.raises(BuildError, match="SHA-256"):
        source.check(archive)


def test_a_failing_command_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"failed with status 3(.|\n)*the reason"):
        run([sys.executable, "-c", "print('the reason'); exit(3)"], log=tmp_path / "log", cwd=tmp_path)
    with pytest.raises(BuildError, match="not installed"):
        run([str(tmp_path / "no-such-compiler")], log=tmp_path / "log", cwd=tmp_path)


def test_the_stamp_changes_with_contents_names_and_values(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    file = tmp_path / "sources" / "a.cc"
    file.write_text("1", encoding="utf-8")
    stamps = [stamp.digest(tmp_path, ["sources"], "g++ 12"), stamp.digest(tmp_path, ["sources"], "g++ 13")]
    file.write_text("2", encoding="utf-8")
    stamps.append(stamp.digest(tmp_path, ["sources"], "g++ 12"))
    file.rename(file.with_name("b.cc"))
    stamps.append(stamp.digest(tmp_path, ["sources"], "g++ 12"))
    assert len(set(stamps)) == len(stamps)
    assert stamps[-1] == stamp.digest(tmp_path, ["sources"], "g++ 12")


class TestCuda:
    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder that looks like a CUDA toolkit, which the environment names."""
        (tmp_path / "cuda" / "include").mkdir(parents=True)
        (tmp_path / "cuda" / "include" / "cuda_runtime.h").touch()
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
        return tmp_path / "cuda"

    @pytest.mark.usefixtures("home")
    def test_a_cpu_build_of_torch_uses_the_shim(self) -> None:
        assert toolchain.find_cuda(None) is None

    @pytest.mark.parametrize(("library", "shared"), [("libnccl_static.a", False), ("libnccl.so.2", True)])
    def test_a_toolkit_with_nccl_is_used(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, shared: bool
    ) -> None:
        nccl = tmp_path / "nccl"
        for file in (nccl / "include" / "nccl.h", nccl / "lib" / library):
            file.parent.mkdir(parents=True)
            file.touch()
        monkeypatch.setenv("BYTEPS_NCCL_HOME", str(nccl))
        assert toolchain.find_cuda("12.8") == toolchain.Cuda(home, nccl, nccl_shared=shared)
