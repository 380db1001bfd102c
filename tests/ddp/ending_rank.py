"""A rank that ends without ThcState.close(); settings: {"how": "returns", "raises" or "in_flight"}.

Rank 1 raises an exception, or does not answer any more; rank 0 reports when it has nothing left to do but to end.
"""

import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc.ddp import ThcState, thc_hook
from thc_lab.ranks import Rank, joined_rank


def train(rank: Rank) -> None:
    ddp = DistributedDataParallel(nn.Linear(256, 256))
    state = ThcState()
    ddp.register_comm_hook(state, thc_hook)
    for _ in range(2):
        ddp(torch.randn(4, 256)).square().mean().backward()
    how = rank.settings["how"]
    if how == "raises":
        rank.report(None)
        if rank.rank == 1:
            raise ValueError("a mistake in the training loop")
        ddp(torch.randn(4, 256)).square().mean().backward()
    if how == "in_flight":
        if rank.rank == 1:
            time.sleep(60)
        size = 3 << 20  # several pieces
        state.engine.all_reduce(GradientBuffer("last", torch.ones(size), (ParameterSlice("last", 0, size),)))
    rank.report(None)


with joined_rank() as joined:
    train(joined)
