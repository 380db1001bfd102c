"""Rank 1 stops taking part, first for a while, then for good. Rank 0 reports how it learnt of that."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch.distributed as dist
from known_gradients import all_shapes, gradients, sharded_model
from ranks import Rank, joined_rank
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from byteps_thc import ThcConfig
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.errors import ThcError
from byteps_thc.fsdp import compress_reduce_scatter

DEADLINE_S = 6.0  # long enough for what goes well on a busy machine
_kept: list[object] = []


def lose(rank: Rank, mesh: DeviceMesh, *, kill: bool) -> dict[str, Any]:
    """Train until rank 1 is lost, within a step."""
    model = sharded_model(mesh, reshard_after_forward=False)
    _kept.append(model)  # its connections are there until the end: a late rank is not one that has closed them
    dist.barrier()  # a rank may have imported FSDP seconds before another
    compress_reduce_scatter(model, ThcConfig(), policy=CompressionPolicy(deadline_s=DEADLINE_S))
    for step in range(3):
        loss = model(gradients(rank.rank, step, all_shapes()))
        if rank.rank == 1 and step == 2:
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            return {}
        started = time.monotonic()
        try:
            loss.backward()
        except ThcError as error:
            return {"error": type(error).__name__, "waited_s": time.monotonic() - started}
    return {}


def main() -> None:
    with joined_rank() as rank:
        mesh = init_device_mesh("cpu", (rank.ranks,))
        report = {"late": lose(rank, mesh, kill=False)}
        dist.barrier()  # rank 1 is back
        report["dead"] = lose(rank, mesh, kill=True)
        rank.report(report)
        os._exit(0)  # rank 1 takes no part in leaving


if __name__ == "__main__":
    main()
