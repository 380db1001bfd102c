"""GPU kernels with servers: two ranks and a thc-ps on this machine; averages and residuals are the host's.

    PYTHONPATH=tests/gpu:tests/lib python -P tests/gpu/network_bits.py

On the CPU with TRITON_INTERPRET=1, else both ranks on one GPU, as part of make bench-gpu, with the time of a step and
its copies. Every check runs and prints a line; fails with the checks that failed.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from engine_bits import DEVICE, ON_GPU, launch, rank_main, run_checks, same, step
from gradients import buffers_of, gradient_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from twin_compressors import add_twins

from byteps_thc import ServerCodes
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._engine import factory
from byteps_thc._engine.engine import Engine, GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._net.session import Timeouts
from byteps_thc.ddp import compress
from thc_lab.packet_faults import packet_faults
from thc_lab.ranks import SETTINGS_VARIABLE, Rank, default_group

CPU = torch.device("cpu")
#: Small blocks where the interpreter does them.
_SMALL: dict[str, Any] = {"error_feedback": True} | ({} if ON_GPU else {"rotation_block": 1024})
_SIZES = [[70_000, 30, 5000], [9]] if ON_GPU else [[1100, 30, 1500], [9]]
_CASES: list[dict[str, Any]] = [
    {"name": "float32"},
    {"name": "bfloat16, several pieces", "thc": _SMALL | {"partition_bytes": 1 << 12}, "dtype": "bfloat16"},
    {"name": "not finite", "not_finite": [[1, 1, 0]]},
]
if ON_GPU:
    _CASES += [
        {"name": "warm-up, then compressed", "policy": {"warmup_steps": 1, "stop_step": 2}},
        {"name": "several pieces", "thc": _SMALL | {"partition_bytes": 1 << 16}, "sizes": [[100_001], [5000, 1025]]},
        {"name": "sums of 9 bits", "thc": _SMALL | {"granularity": 200}},
        {"name": "large", "sizes": [[6_500_000, 1000, 70_000]]},
    ]
CASES = [{"thc": _SMALL, "policy": {}, "steps": 3, "sizes": _SIZES} | case for case in _CASES]
TIMED_STEPS = 10
TIMED_FLOATS = 32 << 20


def make(kernels: Literal["device", "host"], rank: Rank, case: dict[str, Any], job: int, **network: Any) -> Engine:
    policy = CompressionPolicy(**case["policy"], kernels=kernels)
    servers = NetworkConfig(rank.settings["servers"], job=job, codes=ServerCodes(**case["thc"]), **network)
    return flat_engine(default_group(), servers, policy)


def same_state(mine: Engine, wanted: Engine) -> None:
    state, expected = mine.state_dict(), wanted.state_dict()
    residuals, others = state.pop("residuals"), expected.pop("residuals")
    assert state == expected, (state, expected)
    assert residuals.keys() == others.keys()
    for name in residuals:
        same(f"residual of {name}", residuals[name], others[name])


def check_case(rank: Rank, case: dict[str, Any], job: int) -> None:
    mine, wanted = make("device", rank, case, job), make("host", rank, case, job + 1)
    for number in range(case["steps"]):
        got = step(mine, case, rank.rank, number, DEVICE)
        for buffer, (average, right) in enumerate(zip(got, step(wanted, case, rank.rank, number, CPU), strict=True)):
            same(f"average of buffer {buffer} in step {number}", average, right)
    same_state(mine, wanted)
    figures, others = mine.statistics(), wanted.statistics()
    assert figures.clamped_fraction == others.clamped_fraction, (figures, others)
    assert figures.to_host_bytes > 0 == others.to_host_bytes
    mine.close()
    wanted.close()


def check_losses(rank: Rank, job: int) -> None:
    """Sums that lack a worker or all: the same bits in every piece, beside the host's kernels."""
    case = CASES[0] | {"sizes": [[20_000 if ON_GPU else 3000]]}
    twins = add_twins()
    timeouts = Timeouts(loss_s=0.05)
    with packet_faults(drop=0.3):
        engine = make("device", rank, case, job, loss_tolerant=True, timeouts=timeouts)
    for number in range(4):
        step(engine, case, rank.rank, number, DEVICE)
    assert {0, 1} & twins[0].contributions, "nothing was lost"
    dist.barrier()
    engine.close()


def check_copies(rank: Rank, job: int) -> None:
    """all_reduce() returns while the GPU is still busy with earlier work; codes and sums are in pinned memory."""
    case = CASES[0]
    engine = make("device", rank, case, job)
    step(engine, case, rank.rank, 0, DEVICE)
    gradients = [gradient_of(case, rank=rank.rank, step=1, number=number).to(DEVICE) for number in range(2)]
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # cycles: about a second
    asleep = torch.cuda.Event()
    asleep.record()
    engine.start_step()
    futures = [engine.all_reduce(buffer) for buffer in buffers_of(case, gradients)]
    assert not asleep.query(), "the host waited"
    for future in futures:
        future.wait()
    torch.cuda.synchronize()
    assert isinstance(engine, FlatEngine)
    for _, layout in engine._layouts._known.values():
        assert layout.pieces is not None
        for piece in layout.pieces(True):
            transfer = piece._transfer  # type: ignore[attr-defined]
            for array in (transfer.codes, *transfer.aggregate()):
                assert torch.from_numpy(array).is_pinned()
    engine.close()


def check_ddp(rank: Rank, job: int, kernels: Literal["device", "auto"], bytes_copied: tuple[float, float]) -> None:
    """DDP's model is on the GPU. Kernels of the device copy codes and sums; "auto" takes the host's with servers."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(2000, 2000).to(DEVICE), device_ids=[0])
    network = NetworkConfig(rank.settings["servers"], job=job)
    state = compress(ddp, network=network, policy=CompressionPolicy(kernels=kernels))
    inputs = torch.randn(64, 2000, device=DEVICE)
    for _ in range(3):
        ddp.zero_grad()
        ddp(inputs).square().mean().backward()
    mine = torch.cat([parameter.grad.flatten() for parameter in ddp.parameters()]).cpu()
    smallest, largest = mine.clone(), mine.clone()
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    assert torch.equal(smallest, largest)
    figures = state.compression_stats()
    copied = (figures.to_host_bytes + figures.to_device_bytes) / figures.coordinates
    assert bytes_copied[0] < copied <= bytes_copied[1], copied
    state.close()


def time_step(rank: Rank, job: int) -> None:
    """A large gradient on the GPU, averaged through thc-ps on this machine by the kernels of the GPU and the host."""
    kinds: tuple[Literal["device", "host"], ...] = ("device", "host")
    for number, kernels in enumerate(kinds):
        engine = make(kernels, rank, CASES[0] | {"thc": {"error_feedback": True}}, job + number)
        gradient = torch.randn(TIMED_FLOATS, device=DEVICE)
        times = []
        for _ in range(TIMED_STEPS):
            torch.cuda.synchronize()
            dist.barrier()
            start = time.perf_counter()
            engine.start_step()
            engine.all_reduce(GradientBuffer("large", gradient, (ParameterSlice("large", 0, TIMED_FLOATS),))).wait()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        figures = engine.statistics()
        copied = (figures.to_host_bytes + figures.to_device_bytes) / figures.coordinates
        print(
            f"   {TIMED_FLOATS} floats, kernels of the {kernels}: {statistics.median(times):.1f} ms "
            f"({min(times):.1f} .. {max(times):.1f}), {copied:.3f} bytes copied a coordinate",
            flush=True,
        )
        engine.close()


def run(rank: Rank) -> dict[str, str]:
    if ON_GPU:
        torch.cuda.set_device(0)
    else:  # the interpreter's GPU
        factory.device_of = lambda *a: None if a[1] is None or a[2].kernels == "host" else DEVICE
    checks: dict[str, Callable[[], None]] = {
        case["name"]: lambda case=case, job=job: check_case(rank, case, 2 * job)  # type: ignore[misc]
        for job, case in enumerate(CASES, start=1)
    }
    if ON_GPU:
        checks["copies"] = lambda: check_copies(rank, 99)
        checks["DDP"] = lambda: check_ddp(rank, 101, "device", (1.5, 1.6))
        checks["DDP, as it is by default"] = lambda: check_ddp(rank, 102, "auto", (7.9, 8.0))
        checks["time"] = lambda: time_step(rank, 103)
    checks["lost packets"] = lambda: check_losses(rank, 100)  # the last one: it adds twins
    return run_checks(checks)


def main() -> None:
    searched = {"PYTHONPATH": os.pathsep.join(sys.path)}  # this folder's, too
    with ParameterServer() as server:
        launch(Path(__file__), 2, settings={"servers": [server.address]}, environment=searched)
    print("same bits with servers")


if __name__ == "__main__":
    rank_main(run) if SETTINGS_VARIABLE in os.environ else main()
