"""Training with THC under bpslaunch, on both routes: the averages of the compressors in one process."""

from pathlib import Path

import pytest
import torch
from byteps_lab import BytepsLab
from byteps_training import CONFIG, SHAPES, Oracle, gradient_of
from same_values import assert_same

from byteps_thc._cli.launch import ParameterServer

pytestmark = [pytest.mark.byteps]
PROGRAMS = Path(__file__).with_name("programs")
WORKERS = 2
LARGEST_PACKET_BYTES = CONFIG.partition_coordinates * CONFIG.bits // 8


@pytest.fixture(
    scope="module",
    params=["network", "servers", "network device", pytest.param("servers device", marks=pytest.mark.slow)],
)
def reports(request, tmp_path_factory):
    """Reports of both workers after training. device: the CPU's kernels stand in for a GPU's."""
    chosen, *arguments = request.param.split()
    folder = tmp_path_factory.mktemp("training")
    with ParameterServer() as thc_ps, BytepsLab(folder, workers=WORKERS) as lab:
        route = {"THC_ROUTE": chosen}
        network = {"THC_SERVERS": thc_ps.address, "THC_JOB": "40"} if chosen == "network" else {}
        lab.start(PROGRAMS / "thc_training.py", str(folder), *arguments, environment=route | network)
        for worker in lab.wait(deadline_s=240):
            assert worker.status == 0, worker.output
        lab.wait_servers()
    return [torch.load(folder / f"report{worker}.pt", weights_only=True) for worker in range(WORKERS)]


def gradients(step):
    return [{name: gradient_of(name, step, worker) for name in SHAPES} for worker in range(WORKERS)]


def test_averages_are_those_of_one_process(reports):
    oracle = Oracle(WORKERS, lanes=2)
    for step in range(3):
        expected = oracle.average(gradients(step))
        for report in reports:
            assert_same(report["averages"]["steps"][step], expected)
    for worker, report in enumerate(reports):
        for name, residual in report["averages"]["residuals"].items():
            assert torch.equal(residual, oracle.residual(worker, name)), name
        compressed = {name for name, (_, dtype) in SHAPES.items() if dtype != torch.float64} - {"first.bias", "tail"}
        assert report["averages"]["residuals"].keys() == compressed


def test_averages_are_near_the_mean(reports):
    """Within the table's expected error, which two workers halve; the first step has no residual of others in it."""
    cost = Oracle(WORKERS, lanes=2).cost
    for name in ("first", "middle", "last", "half", "brain"):
        own = [gradients(0)[worker][name].double() for worker in range(WORKERS)]
        mean = (own[0] + own[1]) / WORKERS
        error = reports[0]["averages"]["steps"][0][name].double() - mean
        energy = sum(gradient.square().sum() for gradient in own) / WORKERS
        assert 0 < error.square().sum() / energy <= cost, name
    for name in ("first.bias", "tail", "double"):
        exact = sum(gradients(0)[worker][name].double() for worker in range(WORKERS)) / WORKERS
        assert torch.equal(reports[0]["averages"]["steps"][0][name], exact.to(SHAPES[name][1])), name


def test_training_goes_on_with_saved_residuals_and_another_number_of_lanes(reports):
    oracle = Oracle(WORKERS, lanes=2)
    for step in range(3):
        oracle.average(gradients(step))
    oracle = oracle.with_lanes(1)
    for step in (3, 4):
        expected = oracle.average(gradients(step))
        for report in reports:
            assert_same(report["averages"]["steps"][step], expected)
    saved_round, last_round, last_step = reports[0]["averages"]["rounds"]
    assert (last_round, last_step) == (oracle.rounds[0], 5)
    assert saved_round < last_round


def test_all_workers_end_with_the_same_bits(reports):
    assert_same(reports[0]["averages"]["parameters"], reports[1]["averages"]["parameters"])
    assert_same(*(report["learning"]["parameters"] for report in reports))
    assert_same(*(report["infinity_and_grad_scaler"] for report in reports))


def test_warm_up_stop_and_accumulation(reports):
    oracle = Oracle(WORKERS, lanes=2)
    for step in range(4):
        summed = [
            {name: first[name] + second[name] for name in SHAPES}
            for first, second in zip(gradients(10 + 2 * step), gradients(11 + 2 * step), strict=True)
        ]
        expected = oracle.average(summed, compress=step in (1, 2))
        for report in reports:
            assert_same(report["warm_up_and_accumulation"]["steps"][step], expected)


def test_the_model_learns(reports):
    for report in reports:
        losses = report["learning"]["losses"]
        assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_averages_arrive_during_the_backward_pass(reports):
    """The backward pass was held before its last gradient, once, until the average of the first one was there."""
    for report in reports:
        assert len(report["learning"]["waited"]) == 1


def test_statistics(reports):
    for report in reports:
        averages = report["averages"]
        assert averages["stat_steps"] == 5
        sizes = {name: gradient_of(name, 0, 0).numel() for name in SHAPES}
        assert averages["coordinates"] == 2 * sum(sizes[name] for name in ("first", "half", "middle", "brain", "last"))
        travelled = sum(sizes[name] for name, (_, dtype) in SHAPES.items() if dtype != torch.float64)
        fp32_bytes = 2 * 4 * travelled  # the optimizer after the restart took 2 steps
        assert averages["ratio"] == pytest.approx(fp32_bytes / averages["sent_bytes"])
        # Small tensors take their part of 8. Packets that a busy machine sends again count as sent.
        assert fp32_bytes / 8 < averages["sent_bytes"]
        assert averages["sent_bytes"] - averages["retransmissions"] * LARGEST_PACKET_BYTES < fp32_bytes / 5
        assert 0 < averages["nmse"] < 0.02


def test_no_gradient_goes_through_host_memory_as_it_is(reports, request):
    """On a device, half a byte a coordinate goes down and one up; small tensors are some per mille."""
    for report in reports:
        averages = report["averages"]
        copied = averages["copied"] / averages["coordinates"]
        assert 1.5 < copied < 1.6 if "device" in request.node.name else copied == 0


def test_errors_are_clear(reports):
    for report in reports:
        other_worker, damaged = report["averages"]["refused"]
        assert "worker is 7" in other_worker
        assert "checksums are missing" in damaged  # which the state lacks
        assert report["averages"]["closed"] == "TransportError"
