"""A rank that averages tensors of unlike scales in one bucket: by DDP, among ranks and by thc-ps, and by ThcReducer.

settings: {"server": address of a thc-ps}. Reports for every way the average, the same on all ranks, and of every tensor
of 1024 elements and more in the last step its root mean square and its error, relative to its energy.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcConfig, ThcReducer
from byteps_thc._net.servers import NetworkConfig
from byteps_thc.ddp import CompressionPolicy, ThcState, thc_hook

CONFIG = ThcConfig(bits=4)
#: Elements and scale; what is below 1024 elements travels exactly.
TENSORS = [
    *[(5000, 1.0), (130, 1.0), (9000, 1e-3), (1, 1.0), (200, 1.0), (3000, 1.0), (140, 1.0), (70_000, 1e-2)],
    *[(1100, 1e-4), (1100, 1.0), (1025, 1e-4)],
]


class Model(nn.Module):
    """Layers whose gradients are of unlike sizes, and one that not every batch uses. In front of the classifier is a
    LayerNorm, with gradients of a 10^4th.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(100, 90), nn.Linear(90, 90), nn.Linear(90, 1200)
        self.norm, self.classifier = nn.LayerNorm(1200), nn.Linear(1200, 30)
        nn.init.normal_(self.classifier.weight, std=1e-5)

    def forward(self, x: Tensor, unused: bool) -> Tensor:
        x = (self.first(1e-3 * x) * 1e-2).tanh()
        x = self.last(self.unused(x) if unused else x)
        output: Tensor = self.classifier(self.norm(x))
        return output


def errors(averages: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
    """(root mean square, relative error) of every large tensor that has a gradient."""
    large = {name: wanted for name, wanted in exact.items() if wanted.numel() >= 1024 and bool(wanted.any())}
    return {
        name: (
            float(wanted.square().mean().sqrt()),
            float((averages[name] - wanted).square().sum() / wanted.square().sum()),
        )
        for name, wanted in large.items()
    }


def ddp(rank: Rank, network: NetworkConfig | None = None, **options: Any) -> dict[str, Any]:
    """Four steps: DDP rebuilds its buckets after the first one."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), find_unused_parameters=True, **options)
    state = ThcState(None, CONFIG, model=model, network=network, policy=CompressionPolicy(deadline_s=60))
    model.register_comm_hook(state, thc_hook)
    target = torch.randn(30, generator=torch.Generator().manual_seed(0))
    for step in range(4):
        x = torch.randn(16, 100, generator=torch.Generator().manual_seed(10 * step + rank.rank))
        own = copy.deepcopy(model.module)
        for part in (own, model):
            part.zero_grad()
            (part(x, step % 2 == 1) * target).sum().backward()
        exact = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in own.named_parameters()}
        for gradient in exact.values():
            dist.all_reduce(gradient)
            gradient /= rank.ranks
        averages = {
            name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.module.named_parameters()
        }
    state.close()
    return {"average": torch.cat([a.flatten() for a in averages.values()]), "errors": errors(averages, exact)}


def reducer(rank: Rank) -> dict[str, Any]:
    def tensors(number: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(number)
        return {str(i): scale * torch.randn(size, generator=random) for i, (size, scale) in enumerate(TENSORS)}

    averages = tensors(rank.rank)
    with ThcReducer(config=CONFIG) as averager:
        averager.all_reduce(averages)
    all_ranks = [tensors(number) for number in range(rank.ranks)]
    exact = {name: torch.stack([own[name] for own in all_ranks]).mean(0) for name in averages}
    return {"average": torch.cat([*averages.values()]), "errors": errors(averages, exact)}


def main() -> None:
    with joined_rank() as rank:
        network = NetworkConfig([rank.settings["server"]])
        rank.report(
            {
                "ddp": ddp(rank),
                "ddp, views": ddp(rank, gradient_as_bucket_view=True),
                "ddp, thc-ps": ddp(rank, network),
                "ThcReducer": reducer(rank),
            }
        )


if __name__ == "__main__":
    main()
