"""A rank, of four, that averages with requantized sums: by DDP, ThcReducer and on a mesh; and loads checkpoints."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ConfigurationError, ThcConfig, ThcReducer
from byteps_thc.ddp import CompressionPolicy, ThcState, thc_hook
from byteps_thc.engines import make_engine
from byteps_thc.pipeline.saved_state import sealed, unsealed

CONFIG = ThcConfig(bits=5, down_bits=6)
SIZE = 100_003


def normal(rank: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(rank))


def nmse(average: Tensor, ranks: int) -> float:
    exact = torch.stack([normal(rank) for rank in range(ranks)]).mean(0)
    return float((average - exact).square().sum() / exact.square().sum())


def reducer(rank: Rank) -> dict[str, Any]:
    with ThcReducer(config=CONFIG) as averager:
        tensor = normal(rank.rank)
        averager.all_reduce({"w": tensor})
        return {"average": tensor, "nmse": nmse(tensor, dist.get_world_size())}


def ddp(rank: Rank, where: Any = None, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(256, 128), bucket_cap_mb=0.05)
    state = ThcState(where, CONFIG, model=model, **options)
    model.register_comm_hook(state, thc_hook)
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(rank.rank))
    model(x).square().sum().backward()
    weight = model.module.weight
    average = weight.grad.detach().clone()
    (exact,) = torch.autograd.grad(model.module(x).square().sum(), [weight])
    dist.all_reduce(exact)
    exact /= dist.get_world_size()
    state.close()
    return {"average": average, "nmse": float((average - exact).square().sum() / exact.square().sum())}


def mesh(rank: Rank) -> dict[str, Any]:
    return ddp(rank, init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within")), dim="between")


def error_of(engine: Any, state: Any) -> str:
    try:
        engine.load_state_dict(state)
    except ConfigurationError as error:
        return str(error)
    return ""


def checkpoints() -> dict[str, str]:
    """What loading says: of states from before there was down_bits, and of others."""
    group, policy = dist.group.WORLD, CompressionPolicy()
    assert group is not None
    engines = {
        name: make_engine(group, ThcConfig(**settings), policy)
        for name, settings in {
            "exact": {"bits": 5}, "asked": {"bits": 5, "down_bits": None}, "pair": {"total_bits": 11},
            "requantized": {"bits": 5, "down_bits": 6},
        }.items()
    }  # fmt: skip
    states = {name: engine.state_dict() for name, engine in engines.items()}
    config = {key: value for key, value in states["exact"]["config"].items() if key != "down_bits"}
    states["old"] = sealed(unsealed(states["exact"]) | {"config": config})
    said = {
        f"{state} in {engine}": error_of(engines[engine], states[state])
        for state, engine in [
            ("old", "exact"), ("old", "asked"), ("exact", "asked"), ("pair", "requantized"), ("old", "requantized"),
            ("requantized", "exact"),
        ]
    }  # fmt: skip
    for engine in engines.values():
        engine.close()
    return said


def settings_that_differ(rank: Rank) -> str:
    group = dist.group.WORLD
    assert group is not None
    try:
        make_engine(group, ThcConfig(bits=5, down_bits=6 if rank.rank else 5), CompressionPolicy())
    except ConfigurationError as error:
        return str(error)
    return ""


def main() -> None:
    with joined_rank() as rank:
        averages = {"reducer": reducer(rank), "mesh": mesh(rank), "ddp": ddp(rank)}
        rank.report(averages | {"checkpoints": checkpoints(), "different": settings_that_differ(rank)})


if __name__ == "__main__":
    main()
