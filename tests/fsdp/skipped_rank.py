"""A rank of sharded models whose GradScaler skips steps; 4 ranks, in two kinds of meshes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from known_gradients import all_shapes, gradients, sharded_model
from ranks import Rank, joined_rank
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from byteps_thc import ThcConfig
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc.fsdp import FsdpCompression, compress_reduce_scatter, compress_replicas

SMALL = CompressionPolicy(bypass_elements=64)
CONFIG = ThcConfig(rotation_block=256, partition_bytes=4096)


def sharded(scaler: Any) -> tuple[nn.Module, FsdpCompression]:
    model = sharded_model(init_device_mesh("cpu", (4,)))
    return model, compress_reduce_scatter(model, CONFIG, policy=SMALL, grad_scaler=scaler)


def replicated(scaler: Any) -> tuple[nn.Module, FsdpCompression]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded_model(mesh["shard"])
    return model, compress_replicas(model, mesh["replicate"], CONFIG, policy=SMALL, grad_scaler=scaler)


def skip_steps(rank: Rank, compressed: Callable[[Any], tuple[nn.Module, FsdpCompression]]) -> dict[str, bool]:
    """Whether a step changed a parameter: of every parameter with a gradient that is not finite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model, _ = compressed(scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def trains(step: int, spoiled: str | None) -> bool:
        own = gradients(rank.rank, step, all_shapes())
        if spoiled is not None and rank.rank == 1:
            own[spoiled].view(-1)[0] = math.nan
        before = [parameter.full_tensor().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        scaler.scale(model(own)).backward()
        scaler.step(optimizer)
        scaler.update()
        after = [parameter.full_tensor() for parameter in model.parameters()]
        return not all(map(torch.equal, before, after))

    trains(0, None)
    result = {}
    for step, name in enumerate(all_shapes(), 1):
        result[name] = trains(2 * step, name)
        result[f"after {name}"] = trains(2 * step + 1, None)
    return result


def main() -> None:
    with joined_rank() as rank:
        rank.report({compressed.__name__: skip_steps(rank, compressed) for compressed in (sharded, replicated)})


if __name__ == "__main__":
    main()
