"""A rank that averages buffers with every baseline, and reports what came out. Started by test_engine.py."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from baseline_workers import BUFFERS, buffer_of
from ranks import Rank, joined_rank
from torch import Tensor

from byteps_thc import baselines
from byteps_thc.baselines import baseline_engine
from byteps_thc.pipeline.flat_engine import FlatEngine
from byteps_thc.pipeline.policy import CompressionPolicy


def average(engine: FlatEngine, rank: int, step: int, *, poisoned: bool = False) -> dict[str, Tensor]:
    """One step, both buffers in flight together; poisoned: rank 1 has a NaN in the first one."""
    buffers = [buffer_of(key, step, rank) for key in BUFFERS]
    if poisoned and rank == 1:
        buffers[0].gradient[10] = float("nan")
    engine.start_step()
    futures = [engine.all_reduce(buffer) for buffer in buffers]
    return {buffer.key: future.wait() for buffer, future in zip(buffers, futures, strict=True)}


def run_scheme(rank: Rank, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Some steps, a poisoned step, and the step after a checkpoint in two engines."""
    config, policy = getattr(baselines, name)(**options), CompressionPolicy(**rank.settings["policy"])
    group = dist.group.WORLD
    assert group is not None
    engine, resumed = (baseline_engine(group, config, policy) for _ in range(2))
    steps: int = rank.settings["steps"]
    averages = [average(engine, rank.rank, step) for step in range(steps)]
    stats, state = engine.statistics(), engine.state_dict()
    poisoned = average(engine, rank.rank, steps, poisoned=True)
    state_after_poison = engine.state_dict()
    engine.load_state_dict(state)
    resumed.load_state_dict(state)
    continuations = [average(used, rank.rank, steps) for used in (engine, resumed)]
    for used in (engine, resumed):
        used.close()
    return {
        "averages": averages,
        "poisoned": poisoned,
        "state": state,
        "state_after_poison": state_after_poison,
        "continuations": continuations,
        "sent_bytes": stats.sent_bytes,
        "received_bytes": stats.received_bytes,
        "coordinates": stats.coordinates,
        "nmse": stats.nmse,
        "residual_norm": stats.residual_norm,
    }


if __name__ == "__main__":
    with joined_rank() as this_rank:
        this_rank.report([run_scheme(this_rank, name, options) for name, options in this_rank.settings["schemes"]])
