"""A rank of devices that average different gradients, or exchange within nodes; NCCL is device_group.py.

settings: {"cases": names of functions here}. Reports each result; test_device_watch.py checks it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import device_group
import torch
import torch.distributed as dist
from device_ranks import take_cpu_for_device_of_ranks
from torch import Tensor

from byteps_thc._base.errors import ThcError
from byteps_thc._engine.engine import Engine, GradientBuffer, ParameterSlice, ShardMatrix
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.hierarchy import exchange
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net import gloo, watch
from byteps_thc._net.groups import cut_group
from byteps_thc._net.mesh import MeshGroups
from byteps_thc._scheme.decoding.settings import RankCodes
from thc_lab.ranks import Rank, default_group, joined_rank

CPU = torch.device("cpu")
NODES = [[0, 1], [2, 3]]
#: NCCL's watchdog ends a rank that waits as long.
POLICY = CompressionPolicy(deadline_s=60, bypass_elements=1 << 30)  # so that no kernel is needed
COMPRESSED = CompressionPolicy(deadline_s=60, kernels="host")
SIZES = {"weight": 3000, "other": 3000, "large": 5000, "new": 4000}


def levels() -> MeshGroups:
    fast, slow = cut_group(default_group(), [NODES, [*zip(*NODES, strict=True)]])
    return MeshGroups(fast, slow)


def average(engine: Engine, name: str, rank: int = 0) -> Tensor:
    gradient = torch.linspace(-1.0 - rank, 1.0, SIZES[name])
    engine.all_reduce(GradientBuffer(name, gradient, (ParameterSlice(name, 0, SIZES[name]),))).wait()
    return gradient


def trained(make: Callable[[], Engine], rank: Rank, odd: str) -> dict[str, Any]:
    """Train on known gradients, then on `odd` on the last rank; return the error, its step, and how NCCL ended."""
    first, error, step = len(device_group.opened), "", -1
    usual, last = ["weight", "other"], rank.rank == rank.ranks - 1
    engine = make()
    try:
        for names in ([*usual, "large"], [odd, "other"] if last else usual, usual, usual):
            step += 1
            engine.start_step()
            for name in names:
                average(engine, name)
    except ThcError as raised:
        error = f"{type(raised).__name__}: {raised}"
    engine.close()
    return {"error": error, "step": step, "ended": [group.end for group in device_group.opened[first:]]}


def one_level(rank: Rank) -> dict[str, Any]:
    """A new gradient, and a known one of another size, on one rank."""
    return {
        odd: trained(lambda: flat_engine(default_group(), RankCodes(), POLICY), rank, odd) for odd in ("new", "large")
    }


def two_levels(rank: Rank) -> dict[str, Any]:
    """As one_level(), and a known one of the same size, which the ranks of one shard find alone."""
    make = partial(exchange.hierarchical_engine, levels(), RankCodes(), POLICY)
    return {odd: trained(make, rank, odd) for odd in ("new", "large", "other")}


def rows(rank: Rank) -> dict[str, Any]:
    """FSDP2: once a parameter is unused on all ranks, then on one alone."""
    engine = flat_engine(
        default_group(), RankCodes(), COMPRESSED.model_copy(update={"kernels": "device"}), sharded=True
    )
    columns = 2000
    slices = tuple(ParameterSlice("w", row * columns, (row + 1) * columns) for row in range(rank.ranks))
    matrix = ShardMatrix("module", rank.ranks, columns, slices, parameters=("w",))
    error, step = "", -1
    try:
        for step in range(4):
            engine.start_step()
            if step == 0 or (step == 2 and rank.rank == 1):
                engine.require_same("module, some", matrix, torch.float32, waits=True)
            else:
                engine.reduce_scatter("module", matrix, torch.ones(matrix.size), torch.empty(columns)).wait()
    except ThcError as raised:
        error = f"{type(raised).__name__}: {raised}"
    engine.close()
    return {"error": error, "step": step}


def host_kernels(rank: Rank) -> dict[str, Any]:
    """Averages of two levels with kernels of the host, of gradients on GPUs, on some of the ranks, and in memory."""
    result: dict[str, Any] = {}
    opened: list[int] = []
    connect = gloo.GlooCommunicator.__init__

    def count(self: Any, group: Any, timeout_s: float) -> None:
        opened.append(group.size())
        connect(self, group, timeout_s)

    gloo.GlooCommunicator.__init__ = count  # type: ignore[method-assign]
    for name, on_gpu in (("GPUs", True), ("mixed", rank.rank != 2), ("memory", False)):
        exchange.gpu_of = lambda _group, _on, on_gpu=on_gpu: CPU if on_gpu else None  # type: ignore[assignment,misc]
        first = len(device_group.opened)
        opened.clear()
        engine = exchange.hierarchical_engine(levels(), RankCodes(), COMPRESSED)
        averages = []
        for _ in range(2):
            engine.start_step()
            averages += [average(engine, each, rank.rank) for each in ("weight", "large")]
        calls = [group.calls for group in device_group.opened[first:]]
        result[name] = {"averages": torch.cat(averages), "calls": calls, "gloo": len(opened)}
        engine.close()
    return result


CASES: dict[str, Callable[[Rank], Any]] = {case.__name__: case for case in (one_level, two_levels, rows, host_kernels)}


watch._PERIOD_S = 0.1
with joined_rank() as rank:
    take_cpu_for_device_of_ranks()
    reports = {}
    for name in rank.settings["cases"]:
        reports[name] = CASES[name](rank)
        dist.barrier()
    rank.report(reports)
