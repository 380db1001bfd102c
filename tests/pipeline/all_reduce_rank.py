"""A rank of four that averages with both collectives through the front ends; see test_all_reduce.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from host_device_compressor import make_host_device_engine
from ranks import Rank, joined_rank
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcConfig, ThcError, ThcReducer
from byteps_thc.ddp import CompressionPolicy, NetworkConfig, compress
from byteps_thc.engines import make_engine
from byteps_thc.fsdp import compress_replicas
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.hierarchy.agreement import MeshAgreement
from byteps_thc.pipeline.hierarchy.engine import NodeEngine
from byteps_thc.pipeline.hierarchy.exchange import ShardExchange
from byteps_thc.transport.groups import open_communicator
from byteps_thc.transport.mesh import mesh_groups

CONFIG = ThcConfig(rotation_block=256, granularity=17, p=1 / 64)
POLICIES = {
    name: CompressionPolicy(bypass_elements=64, deadline_s=60, collective=name) for name in ("shards", "all_reduce")
}
STEPS = 3


def group() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def the_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))


def model_of(rank: Rank) -> tuple[nn.Module, Tensor]:
    """The same on all ranks, and this one's data."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 70), nn.ReLU(), nn.Linear(70, 30))
    return model, torch.randn(8, 50, generator=torch.Generator().manual_seed(rank.rank))


def backward(model: nn.Module, rows: Tensor) -> None:
    for _ in range(STEPS):
        model.zero_grad()
        model(rows).square().mean().backward()


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def own_gradients(rank: Rank) -> dict[str, Tensor]:
    model, rows = model_of(rank)
    backward(model, rows)
    return gradients_of(model)


def ddp(rank: Rank, policy: CompressionPolicy, mesh: DeviceMesh | None = None) -> dict[str, Any]:
    model, rows = model_of(rank)
    wrapped = DistributedDataParallel(model)
    if mesh is None:
        state = compress(wrapped, CONFIG, policy=policy)
    else:
        state = compress(wrapped, CONFIG, policy=policy, mesh=mesh, dim="between")
    backward(wrapped, rows)
    sent = state.compression_stats().sent_bytes
    state.close()
    return {"averages": gradients_of(model), "sent_bytes": sent}


def mesh(rank: Rank, policy: CompressionPolicy) -> dict[str, Any]:
    return ddp(rank, policy, the_mesh())


def mesh_device(rank: Rank, policy: CompressionPolicy) -> dict[str, Any]:
    """What NCCL's ranks have, on CPU tensors."""
    groups = mesh_groups(the_mesh(), "between", "test")
    inner = make_host_device_engine(groups.slow, CONFIG, policy)
    scatter, gather, fast, slow = (
        open_communicator(each, 60) for each in (groups.fast, groups.fast, groups.fast, groups.slow)
    )
    exchange = ShardExchange(groups, scatter, gather, MeshAgreement(fast, slow), inner.device, asks_once=True)
    engine = NodeEngine(inner, exchange)
    own = own_gradients(rank)
    for _ in range(STEPS):
        engine.start_step()
        averages = {name: gradient.flatten().clone() for name, gradient in own.items()}
        for name, flat in averages.items():
            engine.all_reduce(GradientBuffer(name, flat, (ParameterSlice(name, 0, flat.numel()),))).wait()
    sent = engine.statistics().sent_bytes
    engine.close()
    return {"averages": {name: averages[name].view_as(own[name]) for name in own}, "sent_bytes": sent}


def replicas(rank: Rank, policy: CompressionPolicy) -> dict[str, Any]:
    """HSDP."""
    model, rows = model_of(rank)
    fully_shard(model, mesh=the_mesh()["within"])
    handle = compress_replicas(model, the_mesh(), CONFIG, dim="between", policy=policy)
    backward(model, rows)
    sent = handle.compression_stats().sent_bytes
    handle.close()
    averages = {name: gradient.full_tensor() for name, gradient in gradients_of(model).items()}  # type: ignore[attr-defined]
    return {"averages": averages, "sent_bytes": sent}


def reducer(rank: Rank, policy: CompressionPolicy) -> dict[str, Any]:
    """Of several dtypes; calls in flight together."""
    own = own_gradients(rank)
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    with ThcReducer(None, CONFIG, policy=policy) as thc:
        for _ in range(STEPS):
            averages = {name: own[name].to(dtypes[i % 3]) for i, name in enumerate(own)}
            works = [thc.all_reduce({name: average}, async_op=True) for name, average in averages.items()]
            for work in works:
                work.wait()
        return {"averages": averages, "sent_bytes": thc.compression_stats().sent_bytes}


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except ThcError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    with joined_rank() as rank:
        own = own_gradients(rank)
        reports: dict[str, Any] = {
            scenario.__name__: {"own": own} | {name: scenario(rank, policy) for name, policy in POLICIES.items()}
            for scenario in (ddp, mesh, mesh_device, replicas, reducer)
        }
        summed = POLICIES["all_reduce"]
        mine = POLICIES["all_reduce" if rank.rank == 1 else "shards"]
        too_fine, network = ThcConfig(granularity=64), NetworkConfig(["127.0.0.1"])
        reports["differs"] = error_of(lambda: make_engine(group(), CONFIG, mine))
        reports["refused"] = error_of(lambda: make_engine(group(), too_fine, summed))
        reports["servers"] = error_of(lambda: make_engine(group(), CONFIG, summed, network))
        rank.report(reports)


if __name__ == "__main__":
    main()
