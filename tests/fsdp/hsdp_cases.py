"""Cases of a rank of 2 replicas x 2 shards; test_hsdp.py checks their results."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from error_of import error_of
from known_gradients import all_shapes, full_gradients, gradients, sharded_model
from log_lines import log_lines
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from byteps_thc import ParameterSynchronizer, ServerCodes, synchronize_parameters
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc.checkpoint import checkpointable, load
from byteps_thc.fsdp import NetworkConfig, compress_reduce_scatter, compress_replicas
from thc_lab.ranks import Rank

SMALL = CompressionPolicy(bypass_elements=64)
CODES: dict[str, Any] = {"partition_bytes": 4096}


def two_steps(rank: Rank, mesh: DeviceMesh, dtype: torch.dtype = torch.float32, **codes: Any) -> dict[str, Any]:
    model = sharded_model(mesh["shard"], mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
    handle = compress_replicas(model, mesh["replicate"], policy=SMALL, **CODES | codes)
    averages = []
    for step in range(2):
        model(gradients(rank.rank, step, all_shapes())).backward()
        averages.append(full_gradients(model))
    return {
        "averages": averages,
        "sizes": handle.parameter_sizes,
        "scope": handle.state_dict()["scope"],
        "steps": handle.compression_stats().steps,
        "ratio": handle.compression_stats().ratio,
    }


def bfloat16(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    return two_steps(rank, mesh, torch.bfloat16)


def other_bits(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    return two_steps(rank, mesh, bits=3, down_bits=8)


def both_dimensions(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Shards compressed, and replicas too; the mesh of the dimension is as good as its name."""
    model = sharded_model(mesh["shard"])
    shards = compress_reduce_scatter(model, policy=SMALL, **CODES)
    compress_replicas(model, mesh["replicate"], policy=SMALL, **CODES)
    model(gradients(rank.rank, 0, all_shapes())).backward()
    return {"averages": full_gradients(model), "scope": shards.state_dict()["scope"]}


def excluded(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    model = sharded_model(mesh["shard"])
    compress_replicas(
        model, mesh["replicate"], policy=SMALL.model_copy(update={"exclude": ("second", "head")}), **CODES
    )
    model(gradients(rank.rank, 0, all_shapes())).backward()
    return {"averages": full_gradients(model)}


def network(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Through a parameter server: the replicas of each shard are a job of their own."""
    model = sharded_model(mesh["shard"])
    servers = NetworkConfig(rank.settings["servers"], job=7, codes=ServerCodes(**CODES))
    handle = compress_replicas(model, mesh["replicate"], policy=SMALL, network=servers)
    model(gradients(rank.rank, 0, all_shapes())).backward()
    averages = full_gradients(model)
    handle.close()
    return {"averages": averages}


def resuming(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Another model takes over from a checkpoint after one step; both do the second one."""
    averages = []
    for _ in range(2):
        model = sharded_model(mesh["shard"])
        handle = compress_replicas(model, mesh["replicate"], policy=SMALL, **CODES)
        if not averages:
            model(gradients(rank.rank, 0, all_shapes())).backward()
            full_gradients(model)
            dcp.save({"thc": checkpointable(handle)}, checkpoint_id=rank.directory / "checkpoint")
        else:
            load(handle, rank.directory / "checkpoint")
        model(gradients(rank.rank, 1, all_shapes())).backward()
        averages.append(full_gradients(model))
    return {"straight": averages[0], "resumed": averages[1]}


def unused(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Part of a group has no gradient; then replicas go uncompressed altogether."""
    model = sharded_model(mesh["shard"])
    handle = compress_replicas(model, mesh["replicate"], policy=SMALL, **CODES)
    own = gradients(rank.rank, 0, all_shapes())
    with log_lines() as warnings:
        model({name: g for name, g in own.items() if name != "second.weight"}).backward()
    part = full_gradients(model)
    handle.close()
    model(own).backward()
    return {"part": part, "closed": full_gradients(model), "warnings": warnings}


def not_finite(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Whether each average is finite: of a step in which rank 3 has a NaN in one tensor, and of the next."""
    model = sharded_model(mesh["shard"])
    compress_replicas(model, mesh["replicate"], policy=SMALL, **CODES)
    own = gradients(rank.rank, 0, all_shapes())
    finite = []
    for value in (math.nan, 1.0):
        spoiled = value if rank.rank == 3 else 1.0
        model({name: g * (spoiled if name == "second.weight" else 1.0) for name, g in own.items()}).backward()
        finite.append({name: bool(average.isfinite().all()) for name, average in full_gradients(model).items()})
    return {"finite": finite}


def synchronized(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Replicas whose shards have drifted apart; one replica has no optimizer state yet."""
    model = sharded_model(mesh["shard"])
    model.register_buffer("seen", torch.tensor(float(rank.rank)))
    handle = compress_replicas(model, mesh["replicate"], policy=SMALL, **CODES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    synchronizer = ParameterSynchronizer(model, optimizer, compression=handle, synchronize_every=2)
    model(gradients(rank.rank, 0, all_shapes())).backward()
    if rank.rank < 2:
        optimizer.step()
    random = torch.Generator().manual_seed(rank.rank)
    with torch.no_grad():
        for parameter in model.parameters():
            shard = parameter.to_local()
            shard += torch.randn(shard.shape, generator=random)
    model.eval()
    with torch.no_grad():
        model(gradients(rank.rank, 0, all_shapes()))  # leaves whole parameters of the root where shards belong
    before = _shards(model, optimizer)
    done = [synchronizer.step() for _ in range(2)]
    after = _shards(model, optimizer)
    optimizer.zero_grad()
    model(gradients(rank.rank, 1, all_shapes())).backward()
    optimizer.step()
    return {"before": before, "after": after, "done": done, "next": _shards(model, optimizer)}


def _shards(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model.reshard()
    tensors = {"seen": model.seen} | {name: p.to_local() for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key} of {name}"] = value.to_local() if hasattr(value, "to_local") else value
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def refusals(_: Rank, mesh: DeviceMesh) -> dict[str, str]:
    twice = sharded_model(mesh["shard"])
    compress_replicas(twice, mesh["replicate"], **CODES)
    sharded = sharded_model(mesh["shard"])
    makers: dict[str, Callable[[], object]] = {
        "which": lambda: compress_replicas(sharded_model(mesh["shard"]), mesh, **CODES),
        "former": lambda: compress_replicas(sharded_model(mesh["shard"]), mesh["replicate"], dim="rack"),
        "same": lambda: compress_replicas(sharded_model(mesh["shard"]), mesh["shard"], **CODES),
        "native": lambda: compress_replicas(sharded_model(mesh), mesh["replicate"], **CODES),
        "twice": lambda: compress_replicas(twice, mesh["replicate"], **CODES),
        "no handle": lambda: synchronize_parameters(twice),
        "no replicas": lambda: synchronize_parameters(sharded, compression=compress_reduce_scatter(sharded, **CODES)),
    }
    return {name: error_of(make) for name, make in makers.items()}


CASES: list[Callable[[Rank, DeviceMesh], dict[str, Any]]] = [
    two_steps, bfloat16, other_bits, both_dimensions, excluded, network,
    resuming, unused, not_finite, synchronized, refusals,
]  # fmt: skip
