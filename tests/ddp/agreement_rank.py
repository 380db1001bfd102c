"""A rank whose model or loss scale is another one than the others'; reports the error of backward in each case.

settings: {"odd": the rank that is different}.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcConfig
from byteps_thc.ddp import CompressionPolicy, compress

#: long, because no wait may last as long
DEADLINE_S = 60.0
THC = ThcConfig(rotation_block=256)


class Sum(nn.Module):
    """The sum of its parameters, which have the names that are given."""

    def __init__(self, names: list[str], size: int) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(size, size)))

    def forward(self) -> torch.Tensor:
        return torch.stack([part.sum() for part in self.parameters()]).sum()


def error_of(
    rank: Rank,
    scheme: Any = THC,
    *,
    names: tuple[list[str], list[str]] = (["a", "b"], ["a", "b"]),
    scales: tuple[float | None, float | None] = (None, None),
    size: int = 64,
    later: bool = False,
    **policy: Any,
) -> dict[str, Any]:
    """Pairs: of all ranks but the odd one, and of that one. later: that one has the other scale after a step."""
    odd = rank.rank == rank.settings["odd"]
    ddp = DistributedDataParallel(Sum(names[odd], size))
    scale = scales[odd and not later]
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1)
    settings = CompressionPolicy(deadline_s=DEADLINE_S, **policy)
    state = compress(ddp, scheme, policy=settings, grad_scaler=scaler)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    error, start = "", time.monotonic()
    try:
        for _ in range(2):
            loss = ddp()
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update(scales[odd] if later else None)
    except Exception as failed:  # of whatever kind: it comes through torch
        error = str(failed)
    seconds = time.monotonic() - start
    state.close()
    return {"error": error, "waited": seconds > DEADLINE_S / 2}


def cases(rank: Rank) -> dict[str, dict[str, Any]]:
    swapped = (["a", "b"], ["b", "a"])
    other = (["a", "b"], ["a", "c"])
    scales = (2.0, 1024.0)
    return {
        "compressed scale": error_of(rank, scales=scales),
        "scale later": error_of(rank, scales=scales, later=True),
        "no scaler": error_of(rank, scales=(None, 1024.0)),
        "same scale": error_of(rank, scales=(8.0, 8.0)),
        "scale of one": error_of(rank, scales=(None, 1.0), stop_step=1),
        "warm-up names": error_of(rank, names=swapped, warmup_steps=10),
        "warm-up scale": error_of(rank, scales=scales, warmup_steps=10),
        "small names": error_of(rank, names=swapped, size=8),
        "small scale": error_of(rank, scales=scales, size=8),
        "other names": error_of(rank, names=other),
    }


def main() -> None:
    with joined_rank() as rank:
        reports = cases(rank)
        dist.barrier()
        rank.report(reports)


if __name__ == "__main__":
    main()
