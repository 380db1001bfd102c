"""A model whose gradients a test chooses, also sharded by FSDP."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

#: Shapes per block: rows that no number of ranks divides, fewer rows than ranks, a vector, a small one.
SHAPES = {
    "first": {"weight": (37, 50), "bias": (37,)},
    "second": {"weight": (3, 700), "scale": (5,), "bias": (2048,)},
    "root": {"head": (129, 11)},
}


class Block(nn.Module):
    """Parameters and buffers of the gradients that they get."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, wanted: dict[str, Tensor]) -> Tensor:
        parts = [(parameter * wanted[name]).sum() for name, parameter in self.named_parameters() if name in wanted]
        return torch.stack(parts).sum()


class KnownGradients(nn.Module):
    """The gradient of every parameter is the argument of forward()."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block(SHAPES["first"])
        self.second = Block(SHAPES["second"])
        self.head = nn.Parameter(torch.zeros(SHAPES["root"]["head"]))

    def forward(self, wanted: dict[str, Tensor]) -> Tensor:
        blocks = [
            getattr(self, block)({name.split(".")[1]: g for name, g in wanted.items() if name.startswith(block)})
            for block in ("first", "second")
            if any(name.startswith(block) for name in wanted)
        ]
        if "head" in wanted:
            blocks.append((self.head * wanted["head"]).sum())
        return torch.stack(blocks).sum()


def sharded_model(mesh: DeviceMesh, **options: object) -> KnownGradients:
    """Three parameter groups: two blocks and the rest."""
    model = KnownGradients()
    fully_shard(model.first, mesh=mesh, **options)
    fully_shard(model.second, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def gradients(rank: int, step: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def mean_of(own: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the averages of gradients, one mapping a rank."""
    return {name: torch.stack([gradients[name].float() for gradients in own]).mean(dim=0) for name in own[0]}


def all_shapes() -> dict[str, tuple[int, ...]]:
    return {
        name if block == "root" else f"{block}.{name}": shape
        for block, shapes in SHAPES.items()
        for name, shape in shapes.items()
    }


def full_gradients(model: nn.Module) -> dict[str, Tensor]:
    """All ranks must call this; forgets the gradients."""
    found = {name: p.grad.full_tensor().clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def nmse(average: Tensor, wanted: Tensor) -> float:
    return float((average - wanted).square().sum() / wanted.square().sum())
