"""The shared memory of a BytePS training that is killed: who finds it, who removes it, and that others keep theirs."""

import time
from pathlib import Path

import pytest
from byteps_lab import BytepsLab

from byteps_thc._cli.doctor.finding import State
from byteps_thc._cli.doctor.frameworks import check_leftovers
from byteps_thc._net.byteps import leftover_memory

pytestmark = pytest.mark.byteps
ENDLESS = Path(__file__).with_name("programs") / "endless.py"
#: of a step, for a machine that is busy
DEADLINE_S = "60"


def files_of(lab: BytepsLab) -> set[Path]:
    """The shared memory of a job."""
    return set(leftover_memory.FOLDER.glob(f"BytePS_*_{lab.port}_*"))


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    folders = [tmp_path / "killed", tmp_path / "living"]
    for folder in folders:
        folder.mkdir()
    route = {"THC_ROUTE": "servers"}
    with BytepsLab(folders[0], environment=route) as killed:
        killed.start(ENDLESS, DEADLINE_S)
        killed.wait_for_output("worker0", "three steps")
        in_use = files_of(killed)
        assert in_use
        assert not in_use & set(leftover_memory.find()), "the workers run"
        for name in ("worker0", "worker1", "server0", "scheduler"):
            killed.kill(name)
        deadline = time.monotonic() + 60
        while not in_use <= set(leftover_memory.find()):  # the kernel takes processes of this size apart bit by bit
            assert time.monotonic() < deadline
            time.sleep(0.05)
        [finding] = check_leftovers()
        assert finding.state is State.PROBLEM
        assert finding.command == "python -m byteps_thc._net.byteps.leftover_memory"

        with BytepsLab(folders[1], environment=route) as living:
            living.start(ENDLESS, DEADLINE_S)
            living.wait_for_output("worker0", "three steps")
            assert "of workers that were killed" in living.output("worker0") + living.output("worker1")
            assert files_of(killed) == set()
            own = files_of(living)
            assert own
            leftover_memory.remove()
            assert files_of(living) >= own, "the workers run"
