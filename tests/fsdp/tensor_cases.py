"""Cases of a rank of 2 x 2 with tensor and expert parallelism; test_tensor_parallel.py checks their results."""

from collections.abc import Callable
from typing import Any

import torch
from error_of import error_of
from log_lines import log_lines
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional

from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc.fsdp import compress, compress_reduce_scatter, compress_replicas
from thc_lab.ranks import Rank

WIDTH, TOKENS = 32, 8
POLICY = CompressionPolicy(bypass_elements=16)


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96), nn.Linear(96, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Decoder(nn.Module):
    """Split as torchtitan splits one: by rows and columns, norms whole. seen: own weights of the last forward pass."""

    def __init__(self, mesh: DeviceMesh, vocabulary: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm = nn.Embedding(vocabulary, WIDTH), nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        for norm in (self.norm, *(layer.norm for layer in self.layers)):
            nn.init.normal_(norm.weight)
        rows, whole = Shard(1), Replicate()
        splits = {"embedding": RowwiseParallel(input_layouts=whole, output_layouts=rows), "norm": SequenceParallel()}
        splits["head"] = ColwiseParallel(input_layouts=rows, output_layouts=whole)
        parallelize_module(self, mesh["tensor"], splits)
        for layer in self.layers:
            styles = {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=rows)}
            parallelize_module(layer, mesh["tensor"], styles | {"down": RowwiseParallel(output_layouts=rows)})
            fully_shard(layer, mesh=mesh["data"])
        fully_shard(self, mesh=mesh["data"])

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen = {name: local(weight).detach().clone() for name, weight in self.named_parameters(recurse=True)}
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.roll(1, 1).flatten())


def tensor_parallel(_: Rank, __: DeviceMesh) -> dict[str, Any]:
    """Gradients of plain FSDP2, and compressed without and with weights; with equal parts, or 33 and 32 rows."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    random = torch.Generator().manual_seed(mesh.get_local_rank("data"))
    found: dict[str, Any] = {}
    for kind, vocabulary in (("even", 66), ("uneven", 65)):
        tokens = torch.randint(vocabulary, (4, TOKENS), generator=random)
        found[kind] = {}
        for how in ("plain", "gradients", "both"):
            model = Decoder(mesh, vocabulary)
            if how != "plain":
                call = compress if how == "both" else compress_reduce_scatter
                handle = call(model, bits=8, policy=POLICY)
                scope = handle.state_dict()["scope"]
            model(tokens).backward()
            own = {name: parameter.grad for name, parameter in model.named_parameters()}
            found[kind][how] = {
                "whole": {name: gradient.full_tensor().clone() for name, gradient in own.items()},
                "local": {name: gradient.to_local().clone() for name, gradient in own.items()},
                "seen": {name: model.seen[name] for name in ("embedding.weight", "norm.weight", "head.weight")},
            }
    return found | {"scope": scope}


class Experts(nn.Module):
    """The rank's experts of four."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        weight = torch.randn(4, WIDTH, 48, generator=torch.Generator().manual_seed(1))
        self.weight = nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("tw,ewf->etf", x, local(self.weight)).square().mean()


class Mixture(nn.Module):
    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense, self.experts = nn.Linear(WIDTH, WIDTH), Experts(mesh["tensor"])
        fully_shard(self.experts, mesh=mesh["data"])
        fully_shard(self, mesh=init_device_mesh("cpu", (4,)))

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(self.dense(x))


def expert_parallel(rank: Rank, _: DeviceMesh) -> dict[str, Any]:
    """Experts over two ranks, the rest over four; with a handle for each, and last with the one of the rest."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(rank.rank))
    found: dict[str, Any] = {}
    for how in ("plain", "all", "rest"):
        model = Mixture(mesh)
        with log_lines() as lines:
            if how == "all":
                compress(nn.ModuleList([model.experts]), bits=8, policy=POLICY)
            if how != "plain":
                compress_reduce_scatter(model, bits=8, policy=POLICY)
            model(inputs).backward()
        gradients = {name: parameter.grad.full_tensor().clone() for name, parameter in model.named_parameters()}
        found[how] = {"gradients": gradients, "lines": lines}
    return found


def tensor_refusals(_: Rank, mesh: DeviceMesh) -> dict[str, str]:
    names = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    return {"replicas": error_of(lambda: compress_replicas(Decoder(names, 66), mesh["shard"]))}


CASES: list[Callable[[Rank, DeviceMesh], Any]] = [tensor_parallel, expert_parallel, tensor_refusals]
