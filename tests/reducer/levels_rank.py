"""A rank of 2 nodes x 2 ranks that averages tensors with ThcReducer; each scenario returns what the test checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from error_of import error_of
from ranks import Rank, joined_rank
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import byteps_thc._engine.door
import byteps_thc._engine.levels
from byteps_thc import ThcConfig, ThcReducer
from byteps_thc._engine.levels import WayTimes
from byteps_thc._reducer import CompressionPolicy, NetworkConfig
from byteps_thc.checkpoint import checkpointable, load

CONFIG = ThcConfig()


def tensors_of(rank: int, step: int) -> dict[str, Tensor]:
    """Of several kinds; small ones share a buffer, with room between them."""
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
    everyone = [tensors_of(rank, step) for rank in range(4)]
    return {name: torch.stack([own[name].float() for own in everyone]).mean(dim=0) for name in everyone[0]}


def nmse(tensors: dict[str, Tensor], step: int) -> dict[str, float]:
    wanted = {name: average for name, average in exact(step).items() if average.numel()}
    return {name: float((tensors[name].float() - w).square().sum() / w.square().sum()) for name, w in wanted.items()}


def averages(rank: Rank, **where: Any) -> dict[str, Any]:
    with ThcReducer(None, CONFIG, **where) as reducer:
        for step in range(2):
            tensors = tensors_of(rank.rank, step)
            reducer.all_reduce(tensors)
        state, stats = reducer.state_dict(), reducer.compression_stats()
        sizes, said = reducer.parameter_sizes, repr(reducer)
    kept = {name: state.get(name) for name in ("scope", "workers")}
    kept |= {"said": said, "closed": repr(reducer), "sent": stats.sent_bytes, "sizes": dict(sizes or {})}
    averaged = {name: tensor.clone() for name, tensor in tensors.items()}
    return {"averages": averaged, "nmse": nmse(tensors, 1)} | kept


def found(rank: Rank) -> dict[str, Any]:
    return averages(rank)


def flat(rank: Rank) -> dict[str, Any]:
    return averages(rank, levels="flat")


def mesh(rank: Rank) -> dict[str, Any]:
    of_two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))
    return averages(rank, levels=(of_two, "between"))


def some_ranks(rank: Rank) -> Tensor:
    """Ranks 0 and 1 average over a mesh of theirs, and so do 2 and 3."""
    mesh = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("stage", "between", "within"))
    tensor = torch.full((2000,), float(rank.rank))
    with ThcReducer(None, CONFIG, levels=(mesh["between", "within"], "between")) as reducer:
        reducer.all_reduce({"a": tensor})
    return tensor


def mismatch(rank: Rank) -> dict[str, Any]:
    """Rank 3 passes something else: an error on all, and the next call is fine."""
    with ThcReducer(None, CONFIG) as reducer:
        refused = error_of(lambda: reducer.all_reduce({"a": torch.zeros(2000 + (rank.rank == 3))}))
        tensors = {"a": torch.full((2000,), float(rank.rank))}
        reducer.all_reduce(tensors)
        works = [reducer.all_reduce({name: torch.ones(1500)}, async_op=True) for name in "bc"]
        waited = [work.wait() for work in works]
    error = float((tensors["a"] - 1.5).square().mean())
    return {"refused": refused, "error": error, "waited": waited}


def warm_up(rank: Rank) -> dict[str, Any]:
    """Every call is a step, also when those before it are on their way: the first two travel exactly."""
    tensors = [tensors_of(rank.rank, step)["large"] for step in range(4)]
    with ThcReducer(None, CONFIG, policy=CompressionPolicy(warmup_steps=2)) as reducer:
        works = [reducer.all_reduce({f"{step}": tensor}, async_op=True) for step, tensor in enumerate(tensors)]
        for work in works:
            work.wait()
        reducer.all_reduce({})
        steps = reducer.compression_stats().steps
    errors = [float((tensor - exact(step)["large"]).square().mean()) for step, tensor in enumerate(tensors)]
    return {"errors": errors, "steps": steps}


def resumed(rank: Rank) -> dict[str, Any]:
    """Two calls, a checkpoint into another reducer, a third call; the same as three calls in one go."""
    folder = rank.directory / "checkpoint"
    with ThcReducer(None, CONFIG) as first:
        for step in range(2):
            first.all_reduce(tensors_of(rank.rank, step))
        dcp.save({"thc": checkpointable(first)}, checkpoint_id=folder)
        straight = tensors_of(rank.rank, 2)
        first.all_reduce(straight)
    with ThcReducer(None, CONFIG) as second:
        load(second, folder)
        again = tensors_of(rank.rank, 2)
        second.all_reduce(again)
        states: list[Any] = [None] * rank.ranks
        dist.all_gather_object(states, second.state_dict())
        other = error_of(lambda: second.load_state_dict(states[rank.rank ^ 1]))
    return {"same": all(torch.equal(straight[name], again[name]) for name in straight), "other": other}


def refusals(rank: Rank) -> dict[str, str]:
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))
    one = [dist.new_group([number]) for number in range(rank.ranks)][rank.rank]
    calls: dict[str, Callable[[], Any]] = {
        "other ranks": lambda: ThcReducer(one, levels=(two, "between")),
        "worker": lambda: ThcReducer(levels=(two, "between"), worker=0, workers=4),
        "servers": lambda: ThcReducer(NetworkConfig(["127.0.0.1:1"]), levels=(two, "no")),
    }
    return {name: error_of(call) for name, call in calls.items()}


SCENARIOS = [found, flat, mesh, some_ranks, mismatch, warm_up, resumed, refusals]


if __name__ == "__main__":
    with joined_rank() as rank:
        byteps_thc._engine.levels.node_identity = lambda: f"node {rank.rank // 2}"  # type: ignore[attr-defined]
        byteps_thc._engine.levels.time_both_ways = lambda *_: WayTimes(0.1, 0.2)
        rank.report({scenario.__name__: scenario(rank) for scenario in SCENARIOS})
