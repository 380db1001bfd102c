"""One of three ranks, two of which complete a sum: rank 2 waits, and is left behind. settings: servers."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import CompressionPolicy, NetworkConfig, ParameterSynchronizer, ServerCodes, ThcError
from byteps_thc.ddp import compress
from thc_lab.ranks import Rank, joined_rank

STEPS = 15


def run(rank: Rank) -> dict[str, Any]:
    ddp = DistributedDataParallel(nn.Linear(100, 100))
    # 0.6 of three are two.
    codes = ServerCodes(rotation_block=1024)
    network = NetworkConfig(rank.settings["servers"], job=1, quorum=2 if rank.rank == 0 else 0.6, codes=codes)
    policy = CompressionPolicy(bypass_elements=0, deadline_s=30)
    state = compress(ddp, network=network, policy=policy)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    synchronizer = ParameterSynchronizer(ddp, optimizer, compression=state)
    dist.barrier()
    for step in range(STEPS):
        if rank.rank == 2 and step == 5:
            dist.barrier()  # the others have taken all their steps
        random = torch.Generator().manual_seed(10 * step + rank.rank)
        optimizer.zero_grad()
        ddp(torch.randn(8, 100, generator=random)).square().mean().backward()
        optimizer.step()
    if rank.rank != 2:
        dist.barrier()
    before = {name: value.clone() for name, value in ddp.state_dict().items()}
    synchronizer.synchronize()
    stats = state.compression_stats()
    return {
        "before": before,
        "after": ddp.state_dict(),
        "momentum": [entry["momentum_buffer"] for entry in optimizer.state_dict()["state"].values()],
        "missing": stats.missing_contributions / stats.expected_contributions,
    }


def refused(rank: Rank) -> str:
    ddp = DistributedDataParallel(nn.Linear(100, 100))
    try:
        compress(ddp, network=NetworkConfig(rank.settings["servers"], job=2, quorum=0.9 if rank.rank else 0.6))
    except ThcError as error:
        return str(error)
    return ""


with joined_rank() as rank:
    rank.report(run(rank) | {"refused": refused(rank)})
