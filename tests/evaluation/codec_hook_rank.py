"""A rank of DDP with a codec as its hook; reports the gradients of each step, its own and the averages."""

import torch
import torch.distributed as dist
from baselines import TopK
from baselines.hook import CodecState, codec_hook
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thc_lab.ranks import joined_rank

with joined_rank() as rank:
    model = nn.Linear(64, 50)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(CodecState(TopK(ratio=0.1), rank.ranks), codec_hook)
    steps = []
    for step in range(3):
        factors = torch.randn(64, generator=torch.Generator().manual_seed(10 * step + rank.rank))
        ddp.zero_grad()
        ddp(factors[None] * torch.ones(4, 1)).square().sum().backward()
        averages = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        model(factors[None] * torch.ones(4, 1)).square().sum().backward()
        steps.append({"own": [parameter.grad for parameter in model.parameters()], "averages": averages})
    dist.barrier()
    rank.report(steps)
