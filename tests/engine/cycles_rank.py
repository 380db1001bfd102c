"""A rank that makes, uses and closes, or forgets, compression eight times; reports how its threads and files grow.

settings: {"front_ends": names of functions below; "server": address of a thc-ps}.
"""

import gc
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import byteps_thc._engine.door
import byteps_thc._engine.levels
from byteps_thc import Compressor, GradientAverager, ServerCodes, Session, ThcReducer
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._own_loop.synchronizer import ParameterSynchronizer
from byteps_thc.ddp import compress
from byteps_thc.fsdp import compress_all_gather, compress_reduce_scatter, compress_replicas
from thc_lab.ranks import Rank, joined_rank

CYCLES = 7  # and one before them
SETTLED_S = 20.0  # gloo's threads end a moment after their group; long on a busy machine only


def backward(model: nn.Module) -> None:
    model(torch.ones(1, 100)).sum().backward()


def closed_ddp(_: Rank) -> None:
    model = DistributedDataParallel(nn.Linear(100, 100))
    state = compress(model)
    backward(model)
    state.close()


def closed_reducer(_: Rank) -> None:
    with ThcReducer() as averages:
        averages.all_reduce({"weight": torch.ones(5000)})


def closed_failover(rank: Rank) -> None:
    model = DistributedDataParallel(nn.Linear(100, 100))
    state = compress(model, network=NetworkConfig([rank.settings["server"]], failover=True))
    backward(model)
    state.close()


def closed_session(rank: Rank) -> None:
    with open_session(rank) as own:
        average(rank, own)


def ddp(_: Rank) -> None:
    model = DistributedDataParallel(nn.Linear(100, 100))
    state = compress(model)
    backward(model)
    assert state.compression_stats().steps == 1


def ddp_synchronized(_: Rank) -> None:
    model = DistributedDataParallel(nn.Linear(100, 100))
    synchronizer = ParameterSynchronizer(model, compression=compress(model), synchronize_every=1)
    backward(model)
    synchronizer.step()


def swept_ddp_server(rank: Rank) -> None:
    model = DistributedDataParallel(nn.Linear(100, 100))
    compress(model, network=NetworkConfig([rank.settings["server"]]))
    backward(model)


def swept_ddp_failover(rank: Rank) -> None:
    model = DistributedDataParallel(nn.Linear(100, 100))
    compress(model, network=NetworkConfig([rank.settings["server"]], failover=True))
    backward(model)


@cache
def mesh_of(ranks: int) -> DeviceMesh:
    """The process groups of a mesh are torch's, and stay."""
    return init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("replicate", "shard"))


def fsdp(rank: Rank) -> None:
    model = fully_shard(nn.Linear(100, 100), mesh=mesh_of(rank.ranks)["replicate"])
    compress_all_gather(model)
    compress_reduce_scatter(model)
    backward(model)


def hsdp(rank: Rank) -> None:
    mesh = mesh_of(rank.ranks)
    model = fully_shard(nn.Linear(100, 100), mesh=mesh["shard"])
    compress_replicas(model, mesh["replicate"])
    backward(model)


def reducer(_: Rank) -> None:
    ThcReducer().all_reduce({"weight": torch.ones(5000)})


def reducer_in_flight(_: Rank) -> None:
    """Somebody waits for the average, whose reducer nobody has."""
    weight = torch.full((5000,), 3.0)
    work = ThcReducer(bits=8).all_reduce({"weight": weight}, async_op=True)
    gc.collect()
    work.wait()
    torch.testing.assert_close(weight, torch.full((5000,), 3.0), rtol=0.1, atol=0.1)


def reducer_server(rank: Rank) -> None:
    ThcReducer(NetworkConfig([rank.settings["server"]], job=2)).all_reduce({"weight": torch.ones(5000)})


def session(rank: Rank) -> None:
    average(rank, open_session(rank))


def open_session(rank: Rank) -> Session:
    server = rank.settings["server"]
    return Session([server], job=3, worker=rank.rank, workers=rank.ranks, codes=ServerCodes(), run="one")


def average(rank: Rank, own: Session) -> None:
    compressor = Compressor(ServerCodes(), workers=rank.ranks, worker=rank.rank, threads=2)
    GradientAverager(own, compressor).average({"weight": np.ones(5000, np.float32)})


def opened() -> tuple[int, int]:
    threads, files = (len([*Path("/proc/self", kind).iterdir()]) for kind in ("task", "fd"))
    return threads, files


def left_behind(rank: Rank, make: Callable[[Rank], None]) -> list[tuple[int, int]]:
    """How many more threads and files are open after each cycle than after a first one."""
    # Closed handles do not wait for the collector, and a sweep does not call it: the next training does.
    collects = not make.__name__.startswith(("closed", "swept"))
    first, more = (0, 0), []
    for cycle in range(1 + CYCLES):
        make(rank)
        if collects:
            gc.collect()
        deadline_s = time.monotonic() + (SETTLED_S if cycle else 0.5)
        while any(now > then for now, then in zip(opened(), first, strict=True)) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        if cycle == 0:
            first = opened()
            continue
        threads, files = (now - then for now, then in zip(opened(), first, strict=True))
        more.append((max(0, threads), max(0, files)))
        dist.barrier()
    return more


with joined_rank() as rank:
    if rank.ranks > 2:  # two nodes
        byteps_thc._engine.levels.node_identity = lambda: str(rank.rank // 2)  # type: ignore[attr-defined]
        byteps_thc._engine.levels.time_both_ways = lambda *_: (0.1, 0.2)
    gc.collect()
    gc.disable()
    rank.report({name: left_behind(rank, globals()[name]) for name in rank.settings["front_ends"]})
