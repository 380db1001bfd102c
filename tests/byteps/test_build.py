"""The steps of make byteps that need no compiler; that it builds is seen by the tests that run BytePS."""

import io
import re
import sys
import tarfile
from pathlib import Path

import pytest
from byteps_build import source, toolchain
from byteps_build.commands import BuildError, digest, run

REPOSITORY = Path(__file__).parents[2]


def test_a_source_that_the_patch_does_not_fit_is_an_error(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "byteps.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("byteps/setup.py"), io.BytesIO())
    with pytest.raises(BuildError, match=r"(?s)patch -p1.*FAILED"):
        source.unpack(
            tmp_path / "byteps.tar.gz", tmp_path / "source", REPOSITORY / "scripts/byteps/byteps.patch", tmp_path
        )
    assert not (tmp_path / "source").exists()


def test_each_file_of_the_patch_has_a_reason() -> None:
    *parts, _ = re.split(r"^--- a/.*$", (REPOSITORY / "scripts/byteps/byteps.patch").read_text(), flags=re.MULTILINE)
    assert len(parts) == 15
    for part in parts:
        assert re.search(r"^[\w'][^\n]*[.]\n\n\Z", part, re.MULTILINE), part[-200:]


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
    stamps = [digest(tmp_path, ["sources"], "g++ 12"), digest(tmp_path, ["sources"], "g++ 13")]
    file.write_text("2", encoding="utf-8")
    stamps.append(digest(tmp_path, ["sources"], "g++ 12"))
    file.rename(file.with_name("b.cc"))
    stamps.append(digest(tmp_path, ["sources"], "g++ 12"))
    assert len(set(stamps)) == len(stamps)
    assert stamps[-1] == digest(tmp_path, ["sources"], "g++ 12")


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
