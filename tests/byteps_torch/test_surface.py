"""byteps_thc.torch in place of byteps.torch, with two real workers, a server and a scheduler under bpslaunch."""

from pathlib import Path

import pytest
import torch
from byteps_lab import BytepsLab
from same_values import assert_same

from byteps_thc._cli.launch import ParameterServer

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


@pytest.mark.parametrize(
    ("program", "gpus"), [("several_optimizers", "0"), pytest.param("two_processes", "0,1", marks=pytest.mark.slow)]
)
def test_workers_end_without_an_error(tmp_path, program, gpus):
    """Programs that compare by themselves: an optimizer for each layer, and two processes for each worker."""
    with ParameterServer() as thc_ps, BytepsLab(tmp_path) as lab:
        environment = {"THC_SERVERS": thc_ps.address, "NVIDIA_VISIBLE_DEVICES": gpus}
        lab.start(PROGRAMS / f"{program}.py", environment=environment)
        for worker in lab.wait(deadline_s=140):
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


def test_workers_are_made_identical(tmp_path):
    with ParameterServer() as thc_ps, BytepsLab(tmp_path, workers=2) as lab:
        lab.start(PROGRAMS / "synchronize.py", str(tmp_path), environment={"THC_SERVERS": thc_ps.address})
        outputs = lab.wait(deadline_s=120)
        assert [worker.status for worker in outputs] == [0, 0], lab.outputs()
        lab.wait_servers()
    first, second = (torch.load(tmp_path / f"synchronized{rank}.pt", weights_only=True) for rank in range(2))
    assert first["done"] == second["done"] == [False, True, False, True]
    assert not torch.equal(first["before"]["model"]["1.running_mean"], second["before"]["model"]["1.running_mean"])
    assert_same(first["before"], first["after"])
    assert_same(first["after"], second["after"])
    shapes = "weight: torch.float32 [4, 4] on rank 0, weight: torch.float32 [5, 4] on rank 1"
    for report in (first, second):
        assert "synchronize_every is 2 on rank 0, 3 on rank 1" in report["errors"]["every"]
        assert shapes in report["errors"]["model"]
