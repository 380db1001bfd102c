"""Front ends with gradients on one GPU: bits, and that the host waits for nothing. Part of make bench-gpu.

PYTHONPATH=tests/gpu:tests/lib python -P tests/gpu/engines_on_device.py [--only staged|nccl]

Two ranks staged through the host (gloo), then one with NCCL, which takes one rank a GPU: it compresses although it has
nothing to average. Every check prints a line; fails with the checks that failed.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from engine_bits import rank_main, run_checks, same, step
from gradients import buffers_of, gradient_of
from rank_oracle import RankOracle
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcReducer
from byteps_thc._engine import door
from byteps_thc._engine.device.self_check import fault_of
from byteps_thc._engine.engine import ParameterSlice, ShardMatrix
from byteps_thc._engine.factory import flat_engine, rank_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.groups import Communicators
from byteps_thc._scheme.decoding.settings import RankCodes
from byteps_thc.ddp import compress
from thc_lab.ranks import SETTINGS_VARIABLE, Rank, default_group, run_ranks

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
ROUNDS = 3
SHAPES = {"weight": (300, 1000), "bias": (1000,), "large": (5 << 20,)}
CASE: dict[str, Any] = {"name": "nccl", "policy": {}, "sizes": [[6_500_000, 1000, 70_000], [9], [3000]]}
SMALL_CASE = CASE | {"sizes": [[650_000, 1000, 70_000], [9], [3000]]}
DEADLINE_S = 300


def gradients(rank: int, number: int, dtype: torch.dtype) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(10 * number + rank)
    return {name: torch.randn(*shape, generator=random).to(dtype) for name, shape in SHAPES.items()}


def averages(
    reducer: ThcReducer, rank: int, device: torch.device, dtype: torch.dtype, *, waits: bool = False
) -> list[Tensor]:
    """Averages of ROUNDS rounds, on the CPU. waits: whether the host waits for each."""
    results = []
    for number in range(ROUNDS):
        tensors = {name: tensor.to(device) for name, tensor in gradients(rank, number, dtype).items()}
        work = reducer.all_reduce(tensors, async_op=True)
        work.wait()
        if waits:
            torch.cuda.synchronize()
        results += tensors.values()
    reducer.close()
    return [tensor.cpu() for tensor in results]


def check_staged_reducer(rank: int, dtype: torch.dtype) -> None:
    mine = averages(ThcReducer(bits=4), rank, GPU, dtype)
    for number, (average, right) in enumerate(zip(mine, averages(ThcReducer(bits=4), rank, CPU, dtype), strict=True)):
        same(f"tensor {number}", average, right)


def check_staged_ddp(rank: int) -> None:
    ddp, inputs = small_ddp(None, rank)
    state = compress(ddp, bits=4)
    error = error_of_ddp(ddp, inputs)
    assert 0 < error < 0.1, error
    state.close()


def small_ddp(group: dist.ProcessGroup | None, rank: int) -> tuple[DistributedDataParallel, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10)).to(GPU)
    torch.manual_seed(rank + 1)
    return DistributedDataParallel(model, device_ids=[0], process_group=group), torch.randn(64, 1000, device=GPU)


def error_of_ddp(ddp: DistributedDataParallel, inputs: Tensor) -> float:
    """Squared error of the average over the default group, relative; it is the same on all ranks."""
    with ddp.no_sync():
        ddp(inputs).square().mean().backward()
    exact = torch.cat([parameter.grad.flatten() for parameter in ddp.parameters()]).cpu()
    dist.all_reduce(exact)
    exact /= dist.get_world_size()
    ddp.zero_grad()
    ddp(inputs).square().mean().backward()
    mine = torch.cat([parameter.grad.flatten() for parameter in ddp.parameters()]).cpu()
    largest, smallest = mine.clone(), mine.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    assert torch.equal(largest, smallest)
    return float((mine - exact).square().sum() / exact.square().sum())


# One rank, NCCL.


def nccl_engine(group: dist.ProcessGroup) -> FlatEngine:
    """An engine of one rank that compresses although it has nothing to average."""
    policy, communicators = CompressionPolicy(), Communicators(group, 600.0)
    return rank_engine(
        RankCodes().resolve(1), 0, policy, [communicators.of_device()], device=GPU, compress_alone=True,
        leave=communicators.close,
    )  # fmt: skip


def check_choice(group: dist.ProcessGroup) -> None:
    """compress() takes the device engine if it is told to; one rank alone compares no kernels."""
    for sharded in (False, True):
        assert fault_of(GPU, RankCodes(), sharded=sharded) is None
    assert fault_of(GPU, RankCodes(bits=8), gathers=True) is None
    began_s = time.perf_counter()
    assert fault_of(GPU, RankCodes()) is None
    print(f"   compared again in {time.perf_counter() - began_s:.2f} s", flush=True)
    for kernels, device in (("auto", False), ("device", True), ("host", False)):
        ddp, _ = small_ddp(group, 0)
        state = compress(ddp, bits=4, policy=CompressionPolicy(kernels=kernels))
        assert isinstance(state.engine, FlatEngine), kernels
        assert state.engine.in_stream == device, kernels
        state.close()


def check_nccl_bits(group: dist.ProcessGroup, dtype: str) -> None:
    """The averages of NumPy (rank_oracle.py)."""
    case = SMALL_CASE | {"dtype": dtype}
    mine, oracle = nccl_engine(group), RankOracle(RankCodes(), 1)
    for number in range(ROUNDS):
        given = [gradient_of(case, rank=0, step=number, number=buffer) for buffer in range(len(case["sizes"]))]
        expected = [oracle.average([buffer]) for buffer in buffers_of(case, given)]
        for buffer, (average, right) in enumerate(zip(step(mine, case, 0, number, GPU), expected, strict=True)):
            same(f"average of buffer {buffer} in step {number}", average, right)
    print(f"   {mine.statistics()}", flush=True)


def check_nccl_rows(group: dist.ProcessGroup, dtype: torch.dtype) -> None:
    """FSDP2's engine: the bits of the engine in host memory, and from the second step on the host does not wait."""
    mine = flat_engine(group, RankCodes(), CompressionPolicy(kernels="device"), gradients_on=GPU, sharded=True)
    assert mine.in_stream, mine
    wanted = flat_engine(default_group(), RankCodes(), CompressionPolicy(kernels="host"), sharded=True)
    size, small = 3_000_001, 30
    matrix = ShardMatrix("rows", 1, size + small, (ParameterSlice("large", 0, size),), ((size, size + small),))
    random = torch.Generator().manual_seed(0)
    for number in range(ROUNDS):
        gradient = torch.randn(matrix.size, generator=random).to(dtype)
        results = []
        for engine, device in ((wanted, CPU), (mine, GPU)):
            source = gradient.to(device, copy=True)
            output = torch.empty_like(source)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if number and device == GPU else "default")
            try:
                engine.start_step()
                engine.reduce_scatter("rows", matrix, source, output).wait()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            results.append(output.cpu())
        same(f"average in step {number}", results[1], results[0])


def check_no_wait(group: dist.ProcessGroup) -> None:
    """all_reduce() returns while the GPU is still busy with earlier work, without a synchronising call."""
    engine = nccl_engine(group)
    step(engine, CASE, 0, 0, GPU)
    torch.cuda.synchronize()
    tensors = [gradient_of(CASE, rank=0, step=1, number=buffer).to(GPU) for buffer in range(3)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(2_000_000_000)  # cycles: about a second
        asleep = torch.cuda.Event()
        asleep.record()
        start = time.perf_counter()
        engine.start_step()
        for future in [engine.all_reduce(buffer) for buffer in buffers_of(CASE, tensors)]:
            future.wait()
        host_ms = (time.perf_counter() - start) * 1e3
        busy = not asleep.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    print(f"   three buffers of 6.6 million floats enqueued in {host_ms:.2f} ms", flush=True)
    assert busy, f"the host waited: {host_ms} ms"


def check_ddp_without_synchronisation(group: dist.ProcessGroup) -> None:
    ddp, inputs = small_ddp(group, 0)
    state = compress(ddp, bits=4)
    assert state._averaging is not None
    state._averaging.engine = nccl_engine(group)
    error = error_of_ddp(ddp, inputs)
    assert 0 < error < 0.1, error
    for number in range(8):
        ddp.zero_grad()
        loss = ddp(inputs).square().mean()
        torch.cuda.set_sync_debug_mode("error" if number > 4 else "default")
        try:
            loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    state.close()


def check_nccl_reducer(group: dist.ProcessGroup, dtype: torch.dtype) -> None:
    """Rounds that nobody on the host waits for: the averages of rounds for which it waits."""
    mine, wanted = (reducer_with(group, lambda: nccl_engine(group)) for _ in range(2))
    got, expected = averages(mine, 0, GPU, dtype), averages(wanted, 0, GPU, dtype, waits=True)
    for number, pair in enumerate(zip(got, expected, strict=True)):
        same(f"tensor {number}", *pair)
    for reducer in (mine, wanted):
        assert reducer.compression_stats().coordinates > 0, "nothing was compressed"


def reducer_with(group: dist.ProcessGroup, make: Callable[[], FlatEngine]) -> ThcReducer:
    """A reducer of that engine: its own would return tensors as they are, as one rank averages with nobody."""
    with patch.object(door, "flat_engine", lambda *_, **__: make()):
        return ThcReducer(group, bits=4)


def run(rank: Rank) -> dict[str, str]:
    torch.cuda.set_device(0)
    checks: dict[str, Callable[[], None]]
    if rank.ranks == 2:
        checks = {
            f"ThcReducer, staged, {dtype}": partial(check_staged_reducer, rank.rank, dtype)
            for dtype in (torch.float32, torch.bfloat16)
        }
        checks["DDP, staged"] = partial(check_staged_ddp, rank.rank)
        return run_checks(checks)
    group = dist.new_group([0], backend="nccl")
    assert isinstance(group, dist.ProcessGroup)
    return run_checks(
        {
            "NCCL: which engine": partial(check_choice, group),
            "NCCL: bits, float32": partial(check_nccl_bits, group, "float32"),
            "NCCL: bits, bfloat16": partial(check_nccl_bits, group, "bfloat16"),
            "NCCL: the host does not wait": partial(check_no_wait, group),
            "NCCL: DDP without synchronisation": partial(check_ddp_without_synchronisation, group),
            "NCCL: reduce-scatter, float32": partial(check_nccl_rows, group, torch.float32),
            "NCCL: reduce-scatter, bfloat16": partial(check_nccl_rows, group, torch.bfloat16),
            "NCCL: ThcReducer": partial(check_nccl_reducer, group, torch.float32),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["staged", "nccl"])
    only = parser.parse_args().only
    failed = []
    for name, ranks in (("nccl", 1), ("staged", 2)):
        if only in (None, name):
            failed += launch(name, ranks)
    if failed:
        sys.exit("FAILED: " + ", ".join(failed))
    print("engines on a GPU: all checks passed")


def launch(name: str, ranks: int) -> list[str]:
    """Run the checks of so many ranks and print rank 0's log; return the failed checks."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            failures = run_ranks(Path(__file__), ranks, Path(directory), timeout_s=DEADLINE_S)
        except AssertionError as error:  # a rank has died, or the time is over
            print(error, flush=True)
            return [name]
        print((Path(directory) / "rank0.log").read_text(errors="replace"), flush=True)
        return [check for failure in failures for check in failure]


if __name__ == "__main__":
    rank_main(run) if SETTINGS_VARIABLE in os.environ else main()
