"""A rank on a host of its own network: a DDP step with two levels, and the bytes that leave the host meanwhile.

settings: {"namespaces": one for each rank}. Reports the bytes that this rank's host has sent, by scheme.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcReducer
from byteps_thc.ddp import compress, thc_hook
from thc_lab.namespaces import inside
from thc_lab.ranks import SETTINGS_VARIABLE, Rank, joined_rank
from thc_lab.shaped_network import Host

ROWS, COLUMNS = 1024, 512


def bytes_sent(host: Host, step: Callable[[], object]) -> int:
    """By all ranks of the host, between two moments in which no rank sends."""
    dist.barrier()
    before = host.sent()
    dist.barrier()
    step()
    dist.barrier()
    return (host.sent() - before).bytes


def gradient_of(ddp: DistributedDataParallel) -> Tensor:
    [parameter] = ddp.parameters()
    assert parameter.grad is not None
    return parameter.grad


def averaged(rank: Rank, host: Host, hook: Callable[[DistributedDataParallel], Any]) -> dict[str, Any]:
    """A step of one matrix after another one, which makes connections."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(COLUMNS, ROWS, bias=False))
    state = hook(ddp)
    torch.manual_seed(rank.rank)

    def step() -> None:
        ddp.zero_grad()
        ddp(torch.randn(8, COLUMNS)).square().mean().backward()

    step()
    sent = bytes_sent(host, step)
    if state is not None:
        state.close()
    return {"sent": sent, "said": repr(state), "average": gradient_of(ddp).clone()}


def reduced(rank: Rank, host: Host, levels: tuple[DeviceMesh, str]) -> dict[str, Any]:
    """As averaged(), by a ThcReducer."""
    with ThcReducer(levels=levels) as reducer:
        for _ in range(2):
            gradient = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(rank.rank))
            sent = bytes_sent(host, lambda gradient=gradient: reducer.all_reduce({"gradient": gradient}))  # type: ignore[misc]
    return {"sent": sent, "said": repr(reducer), "average": gradient}


def bf16(ddp: DistributedDataParallel) -> None:
    # DDP refuses the hook by its name on gloo, where it works as well.
    def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        return bf16_compress_hook(state, bucket)  # type: ignore[arg-type]

    hook.__annotations__ = thc_hook.__annotations__  # DDP compares them with types
    ddp.register_comm_hook(None, hook)


def cases(rank: Rank, host: Host) -> dict[str, Any]:
    spaces = rank.settings["namespaces"]
    nodes = [[r for r in range(rank.ranks) if spaces[r] == space] for space in dict.fromkeys(spaces)]
    levels = DeviceMesh("cpu", torch.tensor(nodes), mesh_dim_names=("between", "within")), "between"
    return {
        "levels": averaged(rank, host, lambda ddp: compress(ddp, levels=levels)),
        "flat": averaged(rank, host, lambda ddp: compress(ddp, levels="flat")),
        "bf16": averaged(rank, host, bf16),
        "reducer": reduced(rank, host, levels),
    }


launch = json.loads(os.environ[SETTINGS_VARIABLE])
own = launch["settings"]["namespaces"][launch["rank"]]

with inside(own), joined_rank() as rank:
    rank.report(cases(rank, Host(own, "", 0)))
