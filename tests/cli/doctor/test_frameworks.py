"""The doctor's checks of torch, BytePS and shared memory, in environments that lack or break them."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from doctor_host import without_modules

from byteps_thc._cli.doctor.finding import State
from byteps_thc._cli.doctor.frameworks import check_byteps, check_leftovers, check_shared_memory, check_torch
from byteps_thc._net.byteps import leftover_memory


def package(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text)


def distribution(folder: Path, name: str, version: str) -> None:
    (folder / f"{name}-{version}.dist-info").mkdir()
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def test_torch_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an installation: the package is present, and a library that it needs is not."""
    package(tmp_path, "torch", "import ctypes\nctypes.CDLL('libtorch_lost.so')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [finding] = check_torch()
    assert finding.state is State.PROBLEM
    assert "libtorch_lost.so" in finding.meaning
    assert not finding.fails


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


def test_gradients_of_killed_workers(tmp_path: Path) -> None:
    for key in range(2):
        (tmp_path / f"BytePS_ShM_9000_0_{key}").write_bytes(bytes(1 << 20))
    [finding] = check_leftovers(tmp_path)
    assert (finding.state, finding.fails) == (State.PROBLEM, False)
    assert finding.meaning.startswith("2 files, 2.0 MiB, in ")


def test_the_command_runs() -> None:
    """As its text says; it removes nothing that is in use."""
    [finding] = check_leftovers()
    command = [sys.executable, "-P", "-m", leftover_memory.__name__]
    subprocess.run(command, timeout=60, check=True, capture_output=True)
    assert finding.command in ("", f"python {' '.join(command[2:])}")
