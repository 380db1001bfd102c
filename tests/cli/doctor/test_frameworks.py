"""The doctor's checks of torch, BytePS and shared memory, in environments that lack or break them."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from doctor_host import without_modules

from byteps_thc._cli import bfloat16
from byteps_thc._cli.doctor.finding import State
from byteps_thc._cli.doctor.frameworks import check_bfloat16, check_byteps, check_shared_memory, check_torch


def package(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text)


def distribution(folder: Path, name: str, version: str) -> None:
    (folder / f"{name}-{version}.dist-info").mkdir()
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def test_torch_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an installation: the package is there, and a library that it needs is not."""
    package(tmp_path, "torch", "import ctypes\nctypes.CDLL('libtorch_lost.so')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [finding] = check_torch()
    assert finding.state is State.PROBLEM
    assert "libtorch_lost.so" in finding.meaning
    assert not finding.fails


#: torch on a virtual machine that shows AMX and does not let it run, unless oneDNN keeps away from it.
CRASHING_TORCH = """
import os, signal
class nn:
    class Linear:
        def __init__(self, *sizes, device): pass
        def bfloat16(self): return self
        def __call__(self, batch):
            if os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX512_CORE_BF16":
                os.kill(os.getpid(), signal.SIGILL)
class ones:
    def __init__(self, *sizes, device): pass
    def bfloat16(self): return self
"""


@pytest.fixture
def amx_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "torch", CRASHING_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(bfloat16, "shows_amx", lambda: True)


@pytest.mark.usefixtures("amx_that_crashes")
def test_bfloat16_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    [finding] = check_bfloat16()
    assert finding.state is State.PROBLEM
    assert "SIGILL" in finding.meaning
    name, _, value = finding.command.removeprefix("export ").partition("=")
    monkeypatch.setenv(name, value)
    [finding] = check_bfloat16()
    assert finding.state is State.OK, "the command mends it"
    assert finding.meaning == "torch's layers run without AMX (ONEDNN_MAX_CPU_ISA)"


@pytest.mark.parametrize(
    ("isa", "how"), [(None, "with AMX"), ("AVX512_CORE_AMX", "with ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX")]
)
@pytest.mark.usefixtures("amx_that_crashes")
def test_bfloat16_that_works(isa: str | None, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch/__init__.py").write_text(CRASHING_TORCH.replace("signal.SIGILL", "0"))
    if isa is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    [finding] = check_bfloat16()
    assert finding.meaning == f"torch's layers run {how}"


@pytest.mark.usefixtures("amx_that_crashes")
def test_tests_and_demo_do_without_amx_where_it_crashes() -> None:
    note = bfloat16.do_without_amx_if_it_crashes()
    assert note.startswith("ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, because ")
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    assert bfloat16.do_without_amx_if_it_crashes() == "", "it is known by now"


def test_bfloat16_here() -> None:
    """The tests set what is needed, so it works."""
    outcome = bfloat16.try_bfloat16()
    assert outcome.code == 0, outcome.reason
    findings = check_bfloat16()
    assert [finding.state for finding in findings] == [State.OK] * bfloat16.shows_amx()


def test_processors_without_amx(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu avx512_bf16\n")
    assert not bfloat16.shows_amx(cpuinfo)
    cpuinfo.write_text("flags\t\t: fpu avx512_bf16 amx_bf16 amx_tile\n")
    assert bfloat16.shows_amx(cpuinfo)
    assert not bfloat16.shows_amx(tmp_path / "not there")


@pytest.mark.skipif(find_spec("byteps") is not None, reason="BytePS is installed here")
def test_without_byteps() -> None:
    [finding] = check_byteps()
    assert (finding.state, finding.command) == (State.OPTIONAL, "make byteps")


@pytest.mark.byteps
def test_byteps_of_make_byteps() -> None:
    [finding] = check_byteps()
    assert finding.state is State.OK, finding
    assert "THC's compressor for its servers loads" in finding.meaning


@pytest.mark.byteps
def test_byteps_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in without_modules(tmp_path, "torch").items():
        monkeypatch.setenv(name, value)
    [finding] = check_byteps()
    assert finding.state is State.PROBLEM
    assert "No module named 'torch'" in finding.meaning


def test_a_byteps_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update of torch: its library wants symbols that are gone."""
    package(tmp_path, "byteps", "raise ImportError('c_lib.so: undefined symbol: _ZN3c10')\n")
    distribution(tmp_path, "byteps", "0.0.1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [finding] = check_byteps()
    assert (finding.state, finding.command) == (State.PROBLEM, "make byteps")
    assert "undefined symbol" in finding.meaning


@pytest.mark.parametrize(
    ("free_mib", "state", "meaning"),
    [
        (1024, State.OK, "1024 MiB free in /dev/shm"),
        (1023, State.PROBLEM, "1023 MiB free in /dev/shm, where BytePS keeps gradients: a bus error when it is full"),
    ],
)
def test_shared_memory_of_this_host(free_mib: int, state: State, meaning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"/dev/shm": shutil._ntuple_diskusage(8 << 30, 0, free_mib << 20)}
    monkeypatch.setattr(shutil, "disk_usage", space.__getitem__)
    [finding] = check_shared_memory()
    assert (finding.state, finding.meaning) == (state, meaning)


def test_no_shared_memory() -> None:
    [finding] = check_shared_memory("/nonexistent")
    assert finding.state is State.PROBLEM
