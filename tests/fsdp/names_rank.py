"""Ranks whose parameters have other names, order or shapes, or another loss scale; reports the error of each case.

settings: {"odd": the rank that is different}.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from known_gradients import Block
from ranks import Rank, joined_rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from byteps_thc import ThcConfig
from byteps_thc.fsdp import CompressionPolicy, compress_reduce_scatter, compress_replicas

#: long, because no wait may last as long
DEADLINE_S = 60.0
Shapes = dict[str, tuple[int, ...]]
THC = ThcConfig(rotation_block=256)
A_B: Shapes = {"a": (32, 64), "b": (32, 64)}


def error_of(
    rank: Rank,
    odd_shapes: Shapes,
    scheme: Any = THC,
    *,
    shapes: Shapes = A_B,
    scales: tuple[float, float] | None = None,
    replicas: bool = False,
    **policy: Any,
) -> dict[str, Any]:
    """Return the error of two steps. odd_shapes: of the odd rank. scales: of the other ranks, and of that one."""
    odd = rank.rank == rank.settings["odd"]
    own = odd_shapes if odd else shapes
    model = Block(own)
    mesh = init_device_mesh("cpu", (rank.ranks, 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard" if replicas else "replicate"])
    settings = CompressionPolicy(deadline_s=DEADLINE_S, **policy)
    scaler = None if scales is None else torch.amp.GradScaler("cpu", init_scale=scales[odd])
    error, start = "", time.monotonic()
    try:
        if replicas:
            handle = compress_replicas(model, mesh["replicate"], scheme, policy=settings, grad_scaler=scaler)
        else:
            handle = compress_reduce_scatter(model, scheme, policy=settings, grad_scaler=scaler)
        for _ in range(2):
            loss = model({name: torch.ones(shape) for name, shape in own.items()})
            (loss if scaler is None else scaler.scale(loss)).backward()
        handle.close()
    except Exception as failed:  # of whatever kind: it comes through torch
        error = f"{type(failed).__name__}: {failed}"
    return {"error": error, "waited": time.monotonic() - start > DEADLINE_S / 2}


def main() -> None:
    with joined_rank() as rank:
        b_a: Shapes = {"b": (32, 64), "a": (32, 64)}
        a_c: Shapes = {"a": (32, 64), "c": (32, 64)}
        turned: Shapes = {"a": (32, 64), "b": (64, 32)}
        reports = {
            "same": error_of(rank, A_B, scales=(4.0, 4.0)),
            "order": error_of(rank, b_a),
            "names": error_of(rank, a_c),
            "shape": error_of(rank, turned),
            "warm-up": error_of(rank, b_a, warmup_steps=5),
            "small": error_of(rank, a_c, bypass_elements=10000),
            "scale": error_of(rank, A_B, scales=(2.0, 1024.0)),
            "warm-up scale": error_of(rank, A_B, scales=(2.0, 1024.0), warmup_steps=5),
            "replicas": error_of(rank, a_c, replicas=True),
            "replicas' sizes": error_of(rank, {"a": (32, 64), "b": (8, 8)}, replicas=True),
            "replicas' scale": error_of(rank, A_B, scales=(2.0, 1024.0), replicas=True),
            "replicas' small scale": error_of(rank, A_B, scales=(2.0, 1024.0), replicas=True, bypass_elements=10000),
        }
        dist.barrier()
        rank.report(reports)


if __name__ == "__main__":
    main()
