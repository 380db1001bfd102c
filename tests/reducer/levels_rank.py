"""A rank of 2 nodes x 2 ranks that averages tensors with ThcReducer; each scenario returns values for the test."""

from typing import Any

import known_gradients
import torch
from error_of import error_of
from torch import Tensor

import byteps_thc._engine.door
import byteps_thc._engine.levels
from byteps_thc import CompressionPolicy, ThcReducer
from thc_lab.ranks import Rank, joined_rank


def tensors_of(rank: int, step: int) -> dict[str, Tensor]:
    """Tensors of several kinds; small ones share a buffer, with room between them."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return {
        "odd": torch.randn(3001, generator=generator),
        "matrix": torch.randn(40, 60, generator=generator).t(),
        "small": torch.randn(11, generator=generator),
        "large": torch.randn((1 << 20) + 3, generator=generator),
        "half": torch.randn(3000, generator=generator).bfloat16(),
        "empty": torch.zeros(0),
    }


def exact(step: int) -> dict[str, Tensor]:
    return known_gradients.mean_of([tensors_of(rank, step) for rank in range(4)])


def nmse(tensors: dict[str, Tensor], step: int) -> dict[str, float]:
    return {name: known_gradients.nmse(tensors[name], wanted) for name, wanted in exact(step).items() if wanted.numel()}


def averages(rank: Rank, levels: Any = "auto") -> dict[str, Any]:
    with ThcReducer(levels=levels) as reducer:
        for step in range(2):
            tensors = tensors_of(rank.rank, step)
            reducer.all_reduce(tensors)
        said = repr(reducer)
    own = {name: tensor.clone() for name, tensor in tensors.items()}
    return {"averages": own, "nmse": nmse(tensors, 1), "said": said, "closed": repr(reducer)}


def auto(rank: Rank) -> dict[str, Any]:
    return averages(rank)


def flat(rank: Rank) -> dict[str, Any]:
    return averages(rank, levels="flat")


def mismatch(rank: Rank) -> dict[str, Any]:
    """Rank 3 passes something else: an error on all, and the next call is fine."""
    with ThcReducer() as reducer:
        refused = error_of(lambda: reducer.all_reduce({"a": torch.zeros(2000 + (rank.rank == 3))}))
        tensors = {"a": torch.full((2000,), float(rank.rank))}
        reducer.all_reduce(tensors)
        works = [reducer.all_reduce({name: torch.ones(1500)}, async_op=True) for name in "bc"]
        waited = [work.wait() for work in works]
    return {"refused": refused, "error": float((tensors["a"] - 1.5).square().mean()), "waited": waited}


def warm_up(rank: Rank) -> dict[str, Any]:
    """Every call is a step, also when those before it are on their way: the first two travel exactly."""
    tensors = [tensors_of(rank.rank, step)["large"] for step in range(4)]
    with ThcReducer(policy=CompressionPolicy(warmup_steps=2)) as reducer:
        for work in [reducer.all_reduce({f"{step}": tensor}, async_op=True) for step, tensor in enumerate(tensors)]:
            work.wait()
        reducer.all_reduce({})
        steps = reducer.compression_stats().steps
    errors = [float((tensor - exact(step)["large"]).square().mean()) for step, tensor in enumerate(tensors)]
    return {"errors": errors, "steps": steps}


with joined_rank() as rank:
    byteps_thc._engine.levels.node_identity = lambda: f"node {rank.rank // 2}"  # type: ignore[attr-defined]
    byteps_thc._engine.levels.time_both_ways = lambda *_: (0.1, 0.2)
    rank.report({scenario.__name__: scenario(rank) for scenario in (auto, flat, mismatch, warm_up)})
