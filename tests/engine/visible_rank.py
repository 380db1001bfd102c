"""A rank whose gradients travel uncompressed by mistake, on each front end. Reports the log's warnings by mistake."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from log_lines import log_lines
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import CompressionPolicy, ThcReducer
from byteps_thc._base.errors import ConfigurationError
from byteps_thc.ddp import ThcState, compress
from byteps_thc.fsdp import compress_all_gather, compress_reduce_scatter, compress_replicas
from thc_lab.ranks import joined_rank

POLICY = CompressionPolicy(deadline_s=60)


def model() -> nn.Sequential:
    """A block of two thirds of the elements, and the rest."""
    return nn.Sequential(nn.Linear(64, 128, bias=False), nn.Linear(128, 32, bias=False))


def backward(module: nn.Module) -> None:
    module(torch.randn(8, 64)).square().mean().backward()


def root_is_sharded_late() -> float:
    module = model()
    fully_shard(module[0])
    gathers, handle = compress_all_gather(module, policy=POLICY), compress_reduce_scatter(module, policy=POLICY)
    fully_shard(module)
    for _ in range(3):
        backward(module)
    gathers.close()
    handle.close()
    return handle.compression_stats().ratio


def replicas_are_sharded_late() -> str:
    module, mesh = model(), init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(module[0], mesh=mesh["shard"])
    handle = compress_replicas(module, mesh["replicate"], policy=POLICY)
    fully_shard(module, mesh=mesh["shard"])
    try:
        backward(module)
    except ConfigurationError as error:
        return str(error)
    finally:
        handle.close()
    return ""


def no_hook_calls_the_state() -> None:
    ddp = DistributedDataParallel(model())
    with_statistics, closed = (ThcState(model=ddp, policy=POLICY) for _ in range(2))
    with_statistics.compression_stats()  # nothing is wrong yet
    backward(ddp)
    with_statistics.compression_stats()
    with_statistics.close()
    closed.close()


def all_is_small() -> None:
    policy = CompressionPolicy(deadline_s=60, bypass_elements=1 << 20)
    compress(DistributedDataParallel(model()), policy=policy).close()
    module = model()
    fully_shard(module)
    compress_reduce_scatter(module, policy=policy).close()
    with ThcReducer(policy=policy) as reducer:
        reducer.all_reduce({"x": torch.ones(5000)})


def nothing_is_wrong() -> float:
    ddp = DistributedDataParallel(model())
    state = compress(ddp, policy=POLICY)
    backward(ddp)
    state.compression_stats()
    state.close()
    module = model()
    fully_shard(module[0])
    fully_shard(module)
    handle = compress_reduce_scatter(module, policy=POLICY)
    backward(module)
    ratio = handle.compression_stats().ratio
    handle.close()
    return ratio


cases: tuple[Callable[[], object], ...] = (
    nothing_is_wrong, root_is_sharded_late, replicas_are_sharded_late, no_hook_calls_the_state, all_is_small,
)  # fmt: skip
with joined_rank() as rank:
    report: dict[str, Any] = {}
    for case in cases:
        with log_lines() as warnings:
            result = case()
        report[case.__name__] = {"warnings": warnings, "result": result}
    rank.report(report)
