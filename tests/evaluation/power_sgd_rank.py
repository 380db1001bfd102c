"""A rank that averages with torch's own PowerSGD hook, for test_alternatives.py: reports every step's average."""

import os

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from thc_lab.ranks import joined_rank


class Given(nn.Module):
    """Its parameters' gradients are its inputs."""

    def __init__(self, shapes: list[list[int]]) -> None:
        super().__init__()
        # DDP puts the last parameter first into its bucket.
        self.tensors = nn.ParameterList(torch.zeros(shape) for shape in reversed(shapes))

    def forward(self, gradients: list[Tensor]) -> Tensor:
        products = [(own * given).sum() for own, given in zip(self.tensors, reversed(gradients), strict=True)]
        return torch.stack(products).sum()


with joined_rank() as rank:
    shapes = rank.settings["shapes"]
    ddp = DistributedDataParallel(Given(shapes))
    ddp.register_comm_hook(PowerSGDState(None, rank.settings["rank"], start_powerSGD_iter=2), powerSGD_hook)
    averages = []
    for step in range(rank.settings["steps"]):
        random = torch.Generator().manual_seed(100 * step + rank.rank)
        ddp.zero_grad()
        ddp([torch.randn(shape, generator=random) for shape in shapes]).backward()
        parameters = reversed(list(ddp.parameters()))
        averages.append(torch.cat([parameter.grad.flatten() for parameter in parameters]))
    rank.report(torch.stack(averages))
os._exit(0)  # torch's hook leaves futures that hold the group: one of its threads may end last, and join itself
