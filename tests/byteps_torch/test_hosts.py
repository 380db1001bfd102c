"""BytePS workers of two processes each (hosts with two GPUs): they average among themselves, the local root sends."""

from pathlib import Path

import pytest
import torch
from byteps_lab import BytepsLab
from byteps_training import SHAPES, Oracle, gradient_of

from byteps_thc._cli.launch import ParameterServer

pytestmark = pytest.mark.byteps
PROGRAMS = Path(__file__).with_name("programs")
TWO_PROCESSES = {"NVIDIA_VISIBLE_DEVICES": "0,1"}
WORKERS, PROCESSES = 2, 2


def host_gradients(step):
    """Every worker's average over its processes."""
    hosts = []
    for worker in range(WORKERS):
        ranks = range(worker * PROCESSES, (worker + 1) * PROCESSES)
        own = [{name: gradient_of(name, step, rank) for name in SHAPES} for rank in ranks]
        wide = {name: torch.float64 if dtype == torch.float64 else torch.float32 for name, (_, dtype) in SHAPES.items()}
        sums = {name: sum(gradients[name].to(wide[name]) for gradients in own) for name in SHAPES}
        hosts.append({name: (total / PROCESSES).to(SHAPES[name][1]) for name, total in sums.items()})
    return hosts


def test_thc_with_two_processes_per_worker(tmp_path):
    with ParameterServer() as thc_ps, BytepsLab(tmp_path, workers=WORKERS) as lab:
        environment = TWO_PROCESSES | {"THC_SERVERS": thc_ps.address}
        lab.start(PROGRAMS / "host_training.py", str(tmp_path), environment=environment)
        for worker in lab.wait(deadline_s=120):
            assert worker.status == 0, worker.output
        lab.wait_servers()
    reports = [torch.load(tmp_path / f"report{rank}.pt", weights_only=True) for rank in range(WORKERS * PROCESSES)]
    oracle = Oracle(WORKERS, lanes=2)
    for step in range(len(reports[0]["steps"])):
        if step == 2:
            oracle = oracle.with_lanes(2)  # as after loading a state
        expected = oracle.average(host_gradients(step), compress=step > 0)
        for report in reports:
            for name, average in report["steps"][step].items():
                if name == "double":  # BytePS adds all four up, in its own order
                    assert torch.allclose(average, expected[name])
                else:
                    assert torch.equal(average, expected[name]), (step, name)
    for rank, report in enumerate(reports):
        is_root = rank % PROCESSES == 0
        assert bool(report["residuals"]) == bool(report["sent_bytes"]) == is_root
        assert ("checksums are missing" if is_root else "local_rank() 0") in report["refused"]
        for name, residual in report["residuals"].items():
            assert torch.equal(residual, oracle.residual(rank // PROCESSES, name)), name


@pytest.mark.slow
def test_a_worker_of_two_processes_dies(tmp_path):
    with ParameterServer() as thc_ps, BytepsLab(tmp_path) as lab:
        environment = TWO_PROCESSES | {"THC_SERVERS": thc_ps.address}
        lab.start(PROGRAMS / "endless.py", "15", environment=environment)  # four processes take a while to get ready
        lab.wait_for_output("worker0", "three steps")
        lab.kill("worker1")
        worker = lab.wait_worker(0, deadline_s=60)
        assert worker.output.count("Error after") == PROCESSES, worker.output
        assert "exit status 3" in worker.output, worker.output


@pytest.mark.slow
def test_the_servers_route_is_refused(tmp_path):
    with BytepsLab(tmp_path) as lab:
        lab.start(PROGRAMS / "endless.py", environment=TWO_PROCESSES | {"THC_ROUTE": "servers"})
        for worker in lab.wait(deadline_s=60):
            assert worker.output.count("one BytePS worker per GPU") == PROCESSES, worker.output
