"""A rank that sees schedules, other dtypes, misuse and lost ranks. Started by test_trouble.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch import Tensor

from byteps_thc.baselines import Bf16, Dgc, Qsgd, TopK, baseline_engine
from byteps_thc.baselines.config import BaselineConfig
from byteps_thc.errors import ThcError
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.flat_engine import FlatEngine
from byteps_thc.pipeline.policy import CompressionPolicy

SIZE = 2000
INF = float("inf")
LATE_S = 4.0  # of which making an engine on a busy machine takes little


def gradient_of(rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(rank)).to(dtype)


def average(engine: FlatEngine, gradient: Tensor) -> Tensor:
    engine.start_step()
    return engine.all_reduce(GradientBuffer("b", gradient, (ParameterSlice("w", 0, SIZE),))).wait()


def engine_of(config: BaselineConfig, group: dist.ProcessGroup | None = None, **policy: Any) -> FlatEngine:
    group = group or dist.group.WORLD
    assert group is not None
    return baseline_engine(group, config, CompressionPolicy(**{"deadline_s": 30.0} | policy))


def error_of(call: Callable[[], object]) -> dict[str, Any]:
    """The error that a call ends with, and after how long."""
    start = time.monotonic()
    try:
        call()
    except (ThcError, RuntimeError) as error:
        return {"kind": type(error).__name__, "text": str(error), "seconds": time.monotonic() - start}
    raise AssertionError("no error")


def near_the_largest(_: Rank) -> dict[str, Tensor]:
    """Averages of float16 gradients that have the largest numbers, the same on both ranks; and with an infinite one."""
    signs = gradient_of(7).sign()
    averages = {}
    for name, config in {"qsgd": Qsgd(bits=4), "bf16": Bf16()}.items():
        engine = engine_of(config)
        averages[name] = average(engine, (65504 * signs).half())
        averages[f"{name}, infinite"] = average(engine, (65504 * signs).half().index_fill_(0, torch.tensor(5), INF))
        engine.close()
    return averages


def schedule(rank: Rank) -> list[Tensor]:
    engine = engine_of(TopK(ratio=0.1), warmup_steps=1, stop_step=3)
    averages = [average(engine, gradient_of(rank.rank)) for _ in range(4)]
    engine.close()
    return averages


def other_dtypes(rank: Rank) -> dict[str, Tensor]:
    averages = {}
    for dtype in (torch.float16, torch.bfloat16):
        engine = engine_of(Qsgd(bits=8))
        averages[str(dtype)] = average(engine, gradient_of(rank.rank, dtype))
        engine.close()
    return averages


def without_names(rank: Rank) -> Tensor:
    """Gradients of unknown parameters, as FSDP has them when some parameters got no gradient."""
    engine = engine_of(TopK(ratio=0.1))
    engine.start_step()
    average = engine.all_reduce(GradientBuffer("unnamed", gradient_of(rank.rank), ())).wait()
    engine.close()
    return average


def alone(rank: Rank) -> list[Tensor]:
    """A group of one: nothing to average, but DGC has its momentum."""
    groups = [dist.new_group([one]) for one in range(rank.ranks)]
    engine = engine_of(Dgc(ratio=0.1, momentum=0.5), groups[rank.rank])
    averages = [average(engine, torch.ones(SIZE)) for _ in range(2)]
    engine.close()
    return averages


def misuse(rank: Rank) -> dict[str, dict[str, Any]]:
    engine = engine_of(TopK(ratio=0.1))
    state = engine.state_dict()
    damaged = state | {"residuals": {"w": torch.full((SIZE,), float("nan"))}}
    errors = {
        "settings": error_of(lambda: engine_of(TopK(ratio=0.1 + 0.1 * rank.rank))),
        "scheme": error_of(lambda: engine_of(TopK() if rank.rank else Qsgd())),
        "worker": error_of(lambda: engine.load_state_dict(state | {"worker": 1 - rank.rank})),
        "config": error_of(lambda: engine.load_state_dict(state | {"config": {"scheme": "Qsgd"}})),
        "damaged": error_of(lambda: engine.load_state_dict(damaged)),
        "matrix": error_of(lambda: engine.all_reduce(GradientBuffer("m", torch.zeros(2, 2), ()))),
    }
    engine.close()
    errors["closed"] = error_of(lambda: average(engine, gradient_of(0)))
    return errors


def late_rank(rank: Rank) -> dict[str, Any] | None:
    """Rank 1 does not come in time."""
    engine = engine_of(TopK(ratio=0.1), deadline_s=LATE_S)
    dist.barrier()
    error = None if rank.rank == 1 else error_of(lambda: average(engine, gradient_of(0)))
    dist.barrier()
    engine.close()
    return error


def dead_rank(rank: Rank) -> dict[str, Any]:
    """Rank 1 dies after a step; rank 0 returns the error of the next one and of later calls."""
    engine = engine_of(TopK(ratio=0.1), deadline_s=10.0)
    average(engine, gradient_of(rank.rank))
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = error_of(lambda: average(engine, gradient_of(0)))
    later = error_of(lambda: average(engine, gradient_of(0)))
    engine.close()
    return {"error": error, "later": later}


if __name__ == "__main__":
    with joined_rank() as this_rank:
        report: dict[str, Any] = {
            "schedule": schedule(this_rank),
            "near_the_largest": near_the_largest(this_rank),
            "dtypes": other_dtypes(this_rank),
            "without_names": without_names(this_rank),
            "alone": alone(this_rank),
            "misuse": misuse(this_rank),
            "late": late_rank(this_rank),
        }
        report["dead"] = dead_rank(this_rank)
        this_rank.report(report)
        os._exit(0)  # a farewell to the dead rank would wait for it
