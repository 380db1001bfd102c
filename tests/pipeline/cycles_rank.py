"""A rank that makes, uses and closes compression several times; reports how its threads and files grow."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import torch
from ranks import joined_rank
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import byteps_thc.transport.nodes
from byteps_thc import ThcReducer
from byteps_thc.ddp import compress

CYCLES = 3  # and one before them
SETTLED_S = 5.0  # gloo's threads end a moment after their group


def compressed_ddp() -> None:
    model = DistributedDataParallel(nn.Linear(100, 100))
    state = compress(model)
    model(torch.ones(1, 100)).sum().backward()
    state.close()


def reducer() -> None:
    with ThcReducer() as averages:
        averages.all_reduce({"weight": torch.ones(5000)})


def opened() -> tuple[int, int]:
    """Threads and open files of this process."""
    threads, files = (len([*Path("/proc/self", kind).iterdir()]) for kind in ("task", "fd"))
    return threads, files


def left_behind(make: Callable[[], None]) -> list[tuple[int, int]]:
    """How many more threads and files are open after each cycle than after a first one."""
    make()
    time.sleep(0.2)
    first, more = opened(), []
    for _ in range(CYCLES):
        make()
        deadline_s = time.monotonic() + SETTLED_S
        while any(now > then for now, then in zip(opened(), first, strict=True)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        threads, files = (now - then for now, then in zip(opened(), first, strict=True))
        more.append((max(0, threads), max(0, files)))
    return more


if __name__ == "__main__":
    with joined_rank() as rank:
        if rank.ranks > 2:  # two nodes
            byteps_thc.transport.nodes.node_identity = lambda: str(rank.rank // 2)  # type: ignore[attr-defined]
        gc.collect()
        gc.disable()  # what is closed does not wait for it
        rank.report([left_behind(compressed_ddp), left_behind(reducer)])
