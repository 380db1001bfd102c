"""byteps_thc.torch in place of byteps.torch, with two real workers, a server and a scheduler under bpslaunch."""

from pathlib import Path

import pytest
import torch
from byteps_lab import BytepsLab

pytestmark = pytest.mark.byteps
PROGRAMS = Path(__file__).with_name("programs")


def test_everything_of_byteps_torch(tmp_path):
    with BytepsLab(tmp_path) as lab:
        lab.start(PROGRAMS / "surface.py", str(tmp_path))
        for worker in lab.wait(deadline_s=240):
            assert worker.status == 0, worker.output
        lab.wait_servers()
    first, second = (torch.load(tmp_path / f"surface{rank}.pt", weights_only=True) for rank in range(2))
    assert_same(first, second)
    assert len(first["states"]) == 5


@pytest.mark.slow
def test_two_processes_per_worker(tmp_path):
    with BytepsLab(tmp_path) as lab:
        lab.start(PROGRAMS / "two_processes.py", environment={"NVIDIA_VISIBLE_DEVICES": "0,1"})
        for worker in lab.wait(deadline_s=90):
            assert worker.status == 0, worker.output
        lab.wait_servers()


@pytest.mark.slow
def test_suspend_and_resume(tmp_path):
    """BytePS's elastic training: scheduler and servers end with suspend(), and are started again before resume()."""
    with BytepsLab(tmp_path) as lab:
        lab.start(PROGRAMS / "elastic.py")
        for worker in range(lab.workers):
            lab.wait_for_output(f"worker{worker}", "suspended")
        lab.wait_servers()
        lab.start_servers()
        for worker in lab.wait(deadline_s=60):
            assert worker.status == 0, worker.output
        lab.wait_servers()


def assert_same(first, second):
    """Same values and types all the way down; tensors bit for bit."""
    assert type(first) is type(second)
    if isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert_same(value, second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert_same(a, b)
    else:
        assert first == second
