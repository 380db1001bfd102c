"""A rank of a job in which something goes wrong.

settings: {"what": "killed", "late" or "alone"; "nodes": of a mesh, None: there is none}.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcConfig, ThcError
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc.ddp import CompressionPolicy, ThcState, thc_hook

DEADLINE_S = 6.0  # long enough for what goes well on a busy machine


def train(rank: Rank, misbehave: Any) -> dict[str, Any]:
    """Rank 1 misbehaves in the third step; what the others see, and after how long."""
    ddp = DistributedDataParallel(nn.Linear(256, 256))
    policy, nodes = CompressionPolicy(deadline_s=DEADLINE_S), rank.settings.get("nodes")
    if nodes is None:
        state = ThcState(None, ThcConfig(), policy=policy)
    else:
        mesh = init_device_mesh("cpu", (nodes, rank.ranks // nodes), mesh_dim_names=("between", "within"))
        state = ThcState(None, ThcConfig(), levels=(mesh, "between"), policy=policy)
    ddp.register_comm_hook(state, thc_hook)
    result: dict[str, Any] = {"steps": 0, "errors": []}
    for step in range(4):
        if step == 2 and rank.rank == 1:
            misbehave()
        start = time.monotonic()
        try:
            ddp(torch.randn(4, 256)).square().mean().backward()
            result["steps"] += 1
        except (RuntimeError, ThcError) as error:
            result["errors"].append({"type": type(error).__name__, "text": str(error)})
            result.setdefault("seconds", time.monotonic() - start)
    start = time.monotonic()
    state.close()
    return result | {"close_seconds": time.monotonic() - start}


def alone() -> dict[str, Any]:
    """A world of one: nothing is compressed. And what a buffer must look like."""
    ddp = DistributedDataParallel(nn.Linear(64, 64))
    state = ThcState()
    ddp.register_comm_hook(state, thc_hook)
    x = torch.randn(4, 64)
    ddp(x).square().mean().backward()
    exact = ddp.module.weight.grad.clone()
    ddp.module.weight.grad = None
    ddp.module(x).square().mean().backward()
    refused = []
    for gradient, slices in (
        (torch.zeros(4, dtype=torch.float64), ()),
        (torch.zeros(2, 2), ()),
        (torch.zeros(4), (ParameterSlice("a", 0, 3), ParameterSlice("b", 2, 4))),
    ):
        try:
            state.engine.all_reduce(GradientBuffer("wrong", gradient, slices))
        except ThcError as error:
            refused.append(str(error))
    state.close()
    return {"equal": torch.equal(exact, ddp.module.weight.grad), "refused": refused}


def main() -> None:
    with joined_rank() as rank:
        what = rank.settings["what"]
        if what == "killed":
            rank.report(train(rank, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        elif what == "late":
            rank.report(train(rank, lambda: time.sleep(2 * DEADLINE_S)))
        else:
            rank.report(alone())
        if what in ("killed", "late"):
            os._exit(0)  # the default group cannot be left in good order any more
        dist.barrier()


if __name__ == "__main__":
    main()
