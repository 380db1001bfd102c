"""The doctor about gradients of killed BytePS workers."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

from byteps_thc._cli.doctor.finding import State
from byteps_thc._cli.doctor.frameworks import check_leftovers
from byteps_thc._net.byteps import leftover_memory


def test_gradients_of_killed_workers(tmp_path: Path) -> None:
    for key in range(2):
        (tmp_path / f"BytePS_ShM_9000_0_{key}").write_bytes(bytes(1 << 20))
    [finding] = check_leftovers(tmp_path)
    assert (finding.state, finding.fails) == (State.PROBLEM, False)
    assert finding.meaning.startswith("2 files, 2.0 MiB, in ")


def test_gradients_in_use(tmp_path: Path) -> None:
    path = tmp_path / "BytePS_ShM_9000_0_1"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        [finding] = check_leftovers(tmp_path)
    assert finding.state is State.OK


def test_the_command_runs() -> None:
    """As its text says; it removes nothing that is in use."""
    [finding] = check_leftovers()
    command = [sys.executable, "-P", "-m", leftover_memory.__name__]
    subprocess.run(command, timeout=60, check=True, capture_output=True)
    assert finding.command in ("", f"python {' '.join(command[2:])}")
