"""Batches leave most rows of an embedding without a gradient: every front end, among ranks and by thc-ps.

settings: {"servers": address of a thc-ps}. Four ranks, or two nodes of two. Reports for every way the averages of
embeddings, and which rows no rank has; bytes and weights by width of rows; the error of other rows on one rank.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcReducer
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._net.servers import NetworkConfig
from byteps_thc.ddp import CompressionPolicy, ThcState, compress
from byteps_thc.fsdp import compress_reduce_scatter, compress_replicas
from thc_lab.ranks import Rank, joined_rank

#: Rows do not end where blocks, groups of 32 or shards do.
ROWS, WIDTH = 3001, 50
POLICY = CompressionPolicy(deadline_s=60)
#: Embeddings of the model. Rows of `narrow` have 3 elements. PEFT's `lora_embedding_A` has a column for each token.
EMBEDDINGS = ("words", "bag", "narrow", "lora_embedding_A")
WIDTHS = (1, 2, 4, 7, 8, 17, 32, 48, 64, 100, 128, 300)


class Model(nn.Module):
    """An embedding whose weight is the head's, too, in `tied`: all its rows have gradients then, and the bag's not."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(ROWS, WIDTH, padding_idx=0), nn.Linear(WIDTH, 64, bias=False)
        self.bag, self.narrow = nn.EmbeddingBag(ROWS, 128), nn.Embedding(ROWS, 3)
        self.lora_embedding_A = nn.Parameter(torch.randn(4, ROWS))
        if tied:
            self.head = nn.Linear(WIDTH, ROWS, bias=False)
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        mean: Tensor = self.head(self.words(words)).logsumexp(-1).mean()
        tokens = nn.functional.embedding(words, self.lora_embedding_A.T)
        return mean + sum(part.square().sum() for part in (self.bag(words), self.narrow(words), tokens))

    def rows(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradients of the embeddings, a row for each token."""
        names = {name: name if name in gradients else f"{name}.weight" for name in EMBEDDINGS}
        return {name: gradients[full].T if name == full else gradients[full] for name, full in names.items()}


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of all parameters, whole ones of sharded parameters."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in gradients.items()}


def words_of(rank: int) -> Tensor:
    return 7 * (torch.rand(16, 16, generator=torch.Generator().manual_seed(rank)) ** 3 * 300).long()


def trained(rank: Rank, model: nn.Module) -> nn.Module:
    model(words_of(rank.rank)).backward()
    return model


def in_ddp(rank: Rank, tied: bool = False, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(tied))
    state = compress(model, policy=POLICY, **options)
    trained(rank, model)
    state.close()
    return model.module.rows(gradients_of(model.module))


def in_fsdp(rank: Rank, dim: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Model()
    for module in (model.words, model):
        fully_shard(module, shard_placement_fn=lambda parameter: Shard(dim if parameter.shape[1] % 4 == 0 else 0))
    handle = compress_reduce_scatter(model, bits=4, policy=POLICY)
    trained(rank, model)
    handle.close()
    return model.rows(gradients_of(model))


def in_hsdp(rank: Rank) -> dict[str, Tensor]:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))
    model = fully_shard(Model(), mesh=mesh["within"])
    handle = compress_replicas(model, mesh["between"], policy=POLICY)
    trained(rank, model)
    handle.close()
    return model.rows(gradients_of(model))


def by_reducer(rank: Rank) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Model()
    gradients = gradients_of(trained(rank, model))
    with ThcReducer(rows=["words", "bag.*", "narrow"], policy=POLICY) as reducer:
        reducer.all_reduce(gradients)
    return model.rows(gradients)


def of_width(rank: Rank, width: int) -> tuple[float, Tensor, Tensor]:
    """Train rows of this width by AdamW; return the factor of fp32's bytes, and the weight before and after."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Embedding(ROWS, width))
    before = model.module.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0)
    with closing(compress(model, policy=POLICY, bits=8)) as state:
        for _ in range(3):
            optimizer.zero_grad()
            model(words_of(rank.rank)).square().sum().backward()
            optimizer.step()
        return state.compression_stats().ratio, before, model.module.weight.detach()


def ways(rank: Rank) -> Iterator[tuple[str, dict[str, Tensor]]]:
    network = NetworkConfig(rank.settings["servers"])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))
    yield "DDP", in_ddp(rank)
    yield "DDP, tied", in_ddp(rank, tied=True)
    yield "DDP, 2 bits up, 8 down", in_ddp(rank, bits=2, down_bits=8)
    yield "DDP, thc-ps", in_ddp(rank, network=network)
    yield "DDP, mesh", in_ddp(rank, levels=(mesh, "between"))
    yield "FSDP2", in_fsdp(rank)
    yield "FSDP2, other dimension", in_fsdp(rank, dim=1)
    yield "HSDP", in_hsdp(rank)
    yield "ThcReducer", by_reducer(rank)


def exact(tied: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model, ranks = Model(tied), dist.get_world_size()
    for rank in range(ranks):  # gradients add up
        (model(words_of(rank)) / ranks).backward()
    return model.rows(gradients_of(model))


def refusal() -> str:
    policy = CompressionPolicy(deadline_s=60, rows=("words.weight",) if dist.get_rank() == 1 else ())
    try:
        ThcState(model=nn.ModuleDict({"words": nn.Linear(8, 8)}), policy=policy)
    except ConfigurationError as error:
        return str(error)
    return ""


with joined_rank() as rank:
    report: dict[str, Any] = dict(ways(rank))
    widths = {width: of_width(rank, width) for width in WIDTHS}
    rank.report(
        {"ways": report, "exact": exact(False), "exact, tied": exact(True), "widths": widths, "refusal": refusal()}
    )
