"""A rank of a job whose rank 1 is killed in its second call."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from ranks import Rank, joined_rank

from byteps_thc import ThcConfig, ThcError, ThcReducer
from byteps_thc._reducer import AverageWork, CompressionPolicy

DEADLINE_S = 6.0  # long enough for what goes well on a busy machine


def in_flight_mark(rank: Rank, other: int) -> Path:
    return rank.directory / f"in-flight-{other}"


def wait_until_others_are_in_flight(rank: Rank) -> None:
    """Let no call of theirs begin after this rank's end: it would be refused with another text."""
    end = time.monotonic() + DEADLINE_S
    while not all(in_flight_mark(rank, other).exists() for other in (0, 2)):
        assert time.monotonic() < end, "the other ranks began no call"
        time.sleep(0.01)


def run(rank: Rank) -> dict[str, Any]:
    """Return what the others see, and after how long."""
    reducer = ThcReducer(None, ThcConfig(), policy=CompressionPolicy(deadline_s=DEADLINE_S))
    reducer.all_reduce({"a": torch.ones(5000)})
    if rank.rank == 1:
        wait_until_others_are_in_flight(rank)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    errors = []
    works: list[AverageWork] = []
    for name in ("b", "c"):
        try:
            works.append(reducer.all_reduce({name: torch.ones(8 << 20)}, async_op=True))
        except ThcError as error:
            errors.append(f"{type(error).__name__}: {error}")
    in_flight_mark(rank, rank.rank).touch()
    for work in works:
        try:
            work.wait()
        except ThcError as error:
            errors.append(f"{type(error).__name__}: {error}")
    try:
        reducer.all_reduce({"a": torch.ones(5000)})
    except ThcError as error:
        errors.append(f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - start
    reducer.close()
    return {"errors": errors, "seconds": seconds, "close_seconds": time.monotonic() - start - seconds}


def main() -> None:
    with joined_rank() as rank:
        rank.report(run(rank))
        os._exit(0)  # the default group cannot be left in good order any more


if __name__ == "__main__":
    main()
