"""A rank whose batches leave most rows of an embedding without a gradient: every front end, among ranks and by thc-ps.

settings: {"server": address of a thc-ps}. Four ranks, in two nodes of two where there are levels. Reports for every way
the embedding's average, and which rows no rank has; last, what other names of rows on one rank end in.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcReducer
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc.ddp import CompressionPolicy, ThcState, compress
from byteps_thc.fsdp import compress_reduce_scatter, compress_replicas

#: Rows do not end where blocks, groups of 32 or shards do.
ROWS, WIDTH = 3001, 50
POLICY = CompressionPolicy(deadline_s=60)


class Model(nn.Module):
    """An embedding whose weight is the head's, too, in `tied`: all its rows have gradients then, and the bag's not."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(ROWS, WIDTH, padding_idx=0), nn.Linear(WIDTH, 64, bias=False)
        self.bag = nn.EmbeddingBag(ROWS, 16)
        if tied:
            self.head = nn.Linear(WIDTH, ROWS, bias=False)
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        mean: Tensor = self.head(self.words(words)).logsumexp(-1).mean()
        return mean + self.bag(words).square().sum()


def words_of(rank: int) -> Tensor:
    """Some words often, the others rarely, and padding."""
    random = torch.Generator().manual_seed(rank)
    return 7 * (torch.rand(16, 16, generator=random) ** 3 * 300).long()


def trained(rank: Rank, model: nn.Module) -> nn.Module:
    model(words_of(rank.rank)).backward()
    return model


def in_ddp(rank: Rank, steps: int = 1, tied: bool = False, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(tied))
    state = compress(model, policy=POLICY, **options)
    for _ in range(steps):
        model.zero_grad()
        trained(rank, model)
    state.close()
    return {name: getattr(model.module, name).weight.grad for name in ("words", "bag")}


def in_fsdp(rank: Rank, dim: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Model()
    for module in (model.words, model):
        fully_shard(module, shard_placement_fn=lambda parameter: Shard(dim if parameter.shape[1] % 4 == 0 else 0))
    handle = compress_reduce_scatter(model, bits=4, policy=POLICY)
    trained(rank, model)
    handle.close()
    return {name: getattr(model, name).weight.grad.full_tensor() for name in ("words", "bag")}


def in_hsdp(rank: Rank) -> dict[str, Tensor]:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))
    model = fully_shard(Model(), mesh=mesh["within"])
    handle = compress_replicas(model, mesh["between"], policy=POLICY)
    trained(rank, model)
    handle.close()
    return {name: getattr(model, name).weight.grad.full_tensor() for name in ("words", "bag")}


def by_reducer(rank: Rank) -> dict[str, Tensor]:
    torch.manual_seed(0)
    gradients = {name: p.grad for name, p in trained(rank, Model()).named_parameters()}
    with ThcReducer(rows=["words", "bag.*"], policy=POLICY) as reducer:
        reducer.all_reduce(gradients)
    return {name: gradients[f"{name}.weight"] for name in ("words", "bag")}


def ways(rank: Rank) -> Iterator[tuple[str, dict[str, Tensor]]]:
    network = NetworkConfig([rank.settings["server"]])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))
    yield "DDP", in_ddp(rank)
    yield "DDP, tied", in_ddp(rank, tied=True)
    yield "DDP, 2 bits", in_ddp(rank, steps=3, bits=2)
    yield "DDP, 4 up, 8 down", in_ddp(rank, bits=4, down_bits=8)
    yield "DDP, thc-ps", in_ddp(rank, network=network)
    yield "DDP, mesh", in_ddp(rank, levels=(mesh, "between"))
    yield "FSDP2", in_fsdp(rank)
    yield "FSDP2, other dimension", in_fsdp(rank, dim=1)
    yield "HSDP", in_hsdp(rank)
    yield "ThcReducer", by_reducer(rank)


def exact(tied: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    models = [copy.deepcopy(Model(tied)) for _ in range(1)]
    averages = {name: torch.zeros_like(getattr(models[0], name).weight) for name in ("words", "bag")}
    for rank in range(dist.get_world_size()):
        model = copy.deepcopy(models[0])
        model(words_of(rank)).backward()
        for name, average in averages.items():
            average += getattr(model, name).weight.grad / dist.get_world_size()
    return averages


def refusal() -> str:
    rows = ("words.weight",) if dist.get_rank() == 1 else ()
    policy = CompressionPolicy(deadline_s=60, rows=rows)
    try:
        ThcState(model=nn.ModuleDict({"words": nn.Linear(8, 8)}), policy=policy)
    except ConfigurationError as error:
        return str(error)
    return ""


def main() -> None:
    with joined_rank() as rank:
        report: dict[str, Any] = dict(ways(rank))
        rank.report({"ways": report, "exact": exact(False), "exact, tied": exact(True), "refusal": refusal()})


if __name__ == "__main__":
    main()
