"""What a rank of 2 replicas x 2 shards does, case by case; test_hsdp.py says what must come of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from known_gradients import all_shapes, full_gradients, gradients, sharded_model
from log_lines import log_lines
from ranks import Rank
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from byteps_thc import ParameterSynchronizer, ThcConfig, synchronize_parameters
from byteps_thc._engine import steps as engine_steps
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc.checkpoint import checkpointable, load
from byteps_thc.fsdp import NetworkConfig, compress_reduce_scatter, compress_replicas

SMALL = CompressionPolicy(bypass_elements=64)
CONFIG = ThcConfig(partition_bytes=4096)


def two_steps(
    rank: Rank, mesh: DeviceMesh, dtype: torch.dtype = torch.float32, config: ThcConfig = CONFIG
) -> dict[str, Any]:
    model = sharded_model(mesh["shard"], mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
    handle = compress_replicas(model, mesh["replicate"], config, policy=SMALL)
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
    return two_steps(rank, mesh, config=CONFIG.model_copy(update={"bits": 3, "down_bits": 8}))


def both_dimensions(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Shards compressed, and replicas too; the mesh of the dimension is as good as its name."""
    model = sharded_model(mesh["shard"])
    shards = compress_reduce_scatter(model, CONFIG, policy=SMALL)
    compress_replicas(model, mesh["replicate"], CONFIG, policy=SMALL)
    model(gradients(rank.rank, 0, all_shapes())).backward()
    return {"averages": full_gradients(model), "scope": shards.state_dict()["scope"]}


def excluded(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    model = sharded_model(mesh["shard"])
    policy = SMALL.model_copy(update={"exclude": ("second", "head")})
    compress_replicas(model, mesh["replicate"], CONFIG, policy=policy)
    model(gradients(rank.rank, 0, all_shapes())).backward()
    return {"averages": full_gradients(model)}


def network(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Through a parameter server: the replicas of each shard are a job of their own."""
    model = sharded_model(mesh["shard"])
    servers = NetworkConfig(rank.settings["servers"], job=7)
    handle = compress_replicas(model, mesh["replicate"], CONFIG, policy=SMALL, network=servers)
    model(gradients(rank.rank, 0, all_shapes())).backward()
    averages = full_gradients(model)
    handle.close()
    return {"averages": averages}


def resuming(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Another model takes over from a checkpoint after one step; both do the second one."""
    averages = []
    for _ in range(2):
        model = sharded_model(mesh["shard"])
        handle = compress_replicas(model, mesh["replicate"], CONFIG, policy=SMALL)
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
    handle = compress_replicas(model, mesh["replicate"], CONFIG, policy=SMALL)
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
    compress_replicas(model, mesh["replicate"], CONFIG, policy=SMALL)
    own = gradients(rank.rank, 0, all_shapes())
    finite = []
    for value in (math.nan, 1.0):
        spoiled = value if rank.rank == 3 else 1.0
        model({name: g * (spoiled if name == "second.weight" else 1.0) for name, g in own.items()}).backward()
        finite.append({name: bool(average.isfinite().all()) for name, average in full_gradients(model).items()})
    return {"finite": finite}


def warning(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Replicas that may drift apart, and that nobody synchronises: after three steps here, a thousand for users."""
    patience, engine_steps.PATIENCE_STEPS = engine_steps.PATIENCE_STEPS, 3
    model = sharded_model(mesh["shard"])
    servers = NetworkConfig(rank.settings["servers"], job=17, quorum=0.5)
    with log_lines() as lines:
        handle = compress_replicas(model, mesh["replicate"], CONFIG, policy=SMALL, network=servers)
        for step in range(5):
            model(gradients(rank.rank, step, all_shapes())).backward()
        handle.close()
    engine_steps.PATIENCE_STEPS = patience
    return {"lines": lines}


def synchronized(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Replicas whose shards have drifted apart; one of them has no optimizer state yet."""
    model = sharded_model(mesh["shard"])
    model.register_buffer("seen", torch.tensor(float(rank.rank)))
    handle = compress_replicas(model, mesh["replicate"], CONFIG, policy=SMALL)
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
    """Copies of what this rank has."""
    model.reshard()
    tensors = {"seen": model.seen} | {name: p.to_local() for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key} of {name}"] = value.to_local() if hasattr(value, "to_local") else value
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def refusals(_: Rank, mesh: DeviceMesh) -> dict[str, str]:
    twice = sharded_model(mesh["shard"])
    compress_replicas(twice, mesh["replicate"], CONFIG)
    sharded = sharded_model(mesh["shard"])
    makers: dict[str, Callable[[], object]] = {
        "which": lambda: compress_replicas(sharded_model(mesh["shard"]), mesh, CONFIG),
        "former": lambda: compress_replicas(sharded_model(mesh["shard"]), mesh["replicate"], dim="rack"),
        "same": lambda: compress_replicas(sharded_model(mesh["shard"]), mesh["shard"], CONFIG),
        "native": lambda: compress_replicas(sharded_model(mesh), mesh["replicate"], CONFIG),
        "twice": lambda: compress_replicas(twice, mesh["replicate"], CONFIG),
        "no handle": lambda: synchronize_parameters(twice),
        "no replicas": lambda: synchronize_parameters(sharded, compression=compress_reduce_scatter(sharded, CONFIG)),
    }
    return {name: _refusal(make) for name, make in makers.items()}


def _refusal(make: Callable[[], object]) -> str:
    try:
        make()
    except ConfigurationError as error:
        return str(error)
    return "accepted"


CASES: list[Callable[[Rank, DeviceMesh], dict[str, Any]]] = [
    two_steps,
    bfloat16,
    other_bits,
    both_dimensions,
    excluded,
    network,
    resuming,
    unused,
    not_finite,
    warning,
    synchronized,
    refusals,
]
