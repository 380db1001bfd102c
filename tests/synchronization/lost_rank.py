"""Rank 1 stays away from a synchronisation, then dies. Rank 0 reports how it learnt of that."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch.distributed as dist
from ranks import Rank, joined_rank
from torch import nn

from byteps_thc import CompressionPolicy, ParameterSynchronizer, ThcError, ThcReducer

DEADLINE_S = 6.0  # long enough for what goes well on a busy machine
_kept: list[object] = []


def lose(rank: Rank, *, kill: bool) -> dict[str, Any]:
    model = nn.Linear(40, 40)
    handle = ThcReducer(policy=CompressionPolicy(deadline_s=DEADLINE_S))
    synchronizer = ParameterSynchronizer(model, compression=handle, synchronize_every=2)
    _kept.append((handle, synchronizer))  # its connections are there until the end: late is not closed
    synchronizer.step()
    dist.barrier()
    if rank.rank == 1:
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return {}
    started = time.monotonic()
    try:
        synchronizer.step()
    except ThcError as error:
        return {"error": type(error).__name__, "text": str(error), "waited_s": time.monotonic() - started}
    return {}


def main() -> None:
    with joined_rank() as rank:
        report = {"late": lose(rank, kill=False)}
        dist.barrier()  # rank 1 is back
        report["dead"] = lose(rank, kill=True)
        rank.report(report)
        os._exit(0)  # rank 1 takes no part in leaving


if __name__ == "__main__":
    main()
