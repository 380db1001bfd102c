"""A rank that copies compressed DDP models, and one with "meta" as its default device.

Reports how copies compare and average, the log's warnings, and the averages of all front ends on "meta".
"""

import copy
import io
import pickle
from typing import Any

import torch
import torch.distributed as dist
from log_lines import log_lines
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from byteps_thc import CompressionPolicy, ThcReducer
from byteps_thc.ddp import ThcState, compress, thc_hook
from byteps_thc.fsdp import compress_reduce_scatter
from thc_lab.ranks import Rank, joined_rank

POLICY = CompressionPolicy(deadline_s=60)


def trained(model: nn.Module, rank: Rank) -> Tensor:
    model.zero_grad()
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank.rank), device="cpu")
    model(x).square().mean().backward()
    return next(model.parameters()).grad.clone()


def exact(model: nn.Module, rank: Rank) -> Tensor:
    average = trained(model, rank)
    dist.all_reduce(average)
    return average / rank.ranks


def saved_and_loaded(ddp: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def copies(rank: Rank, warnings: list[str]) -> dict[str, Any]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(64, 64))
    state = compress(ddp, policy=POLICY)
    before = trained(ddp, rank)
    report: dict[str, Any] = {"exact": exact(copy.deepcopy(ddp.module), rank), "before": before, "copies": {}}
    report["warnings of none"] = [*warnings]
    torch.save(ddp, io.BytesIO())
    pickle.dumps(state)
    report["warnings of saving"] = [*warnings]
    for name, make in (
        ("deepcopy", copy.deepcopy),
        ("AveragedModel", lambda model: AveragedModel(model).module),
        ("torch.save", saved_and_loaded),
    ):
        report["copies"][name] = trained(make(ddp), rank)
    with_hook = DistributedDataParallel(copy.deepcopy(ddp.module))
    with_hook.register_comm_hook(pickle.loads(pickle.dumps(state)), thc_hook)
    report["copies"]["unpickled state"] = trained(with_hook, rank)
    report["warnings"] = [*warnings]
    report["after"] = trained(ddp, rank)
    report["type"] = type(state) is ThcState
    state.close()
    return report


def with_another_default_device(rank: Rank) -> dict[str, Tensor]:
    torch.manual_seed(0)
    module = nn.Linear(64, 64)
    averages = {"exact": exact(copy.deepcopy(module), rank)}
    with torch.device("meta"):
        ddp = DistributedDataParallel(copy.deepcopy(module))
        state = compress(ddp, policy=POLICY)
        averages["DDP"] = trained(ddp, rank)
        state.compression_stats()
        state.load_state_dict(state.state_dict())
        state.close()
        sharded = fully_shard(copy.deepcopy(module))
        handle = compress_reduce_scatter(sharded, policy=POLICY)
        sharded(
            torch.randn(8, 64, generator=torch.Generator().manual_seed(rank.rank), device="cpu")
        ).square().mean().backward()
        handle.close()
        averages["FSDP2"] = sharded.weight.grad.full_tensor()
        own = {"weight": trained(copy.deepcopy(module), rank)}
        with ThcReducer(policy=POLICY, rows=["weight"]) as reducer:
            reducer.all_reduce(own)
        averages["ThcReducer"] = own["weight"]
    return averages


with joined_rank() as rank:
    with log_lines() as warnings:
        report = copies(rank, warnings)
    rank.report({"copies": report, "devices": with_another_default_device(rank)})
