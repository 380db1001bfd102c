"""A rank that averages tensors of unlike scales in one bucket: by DDP, among ranks and by thc-ps, and by ThcReducer.

settings: {"server": address of a thc-ps}. Reports for every way the average, the same on all ranks, and the error of
every tensor of 1024 elements and more in the last step, relative to its energy.
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
from byteps_thc.ddp import CompressionPolicy, ThcState, thc_hook
from byteps_thc.transport.servers import NetworkConfig

CONFIG = ThcConfig(bits=4, error_feedback=False)
REQUANTIZED = ThcConfig(bits=5, down_bits=6, error_feedback=False)
#: Elements and scale; what is below 1024 elements travels exactly.
TENSORS = [
    *[(5000, 1.0), (130, 1.0), (9000, 1e-3), (1, 1.0), (200, 1.0), (3000, 1.0), (140, 1.0), (70_000, 1e-2)],
    (10_000, 1e-4),
]


class Model(nn.Module):
    """Layers whose gradients are of unlike sizes, and one that not every batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(100, 90), nn.Linear(90, 90), nn.Linear(90, 30)

    def forward(self, x: Tensor, unused: bool) -> Tensor:
        x = (self.first(1e-3 * x) * 1e-2).tanh()
        output: Tensor = self.last(self.unused(x) if unused else x)
        return output


def errors(averages: list[Tensor], exact: list[Tensor]) -> list[float]:
    large = [(a, e) for a, e in zip(averages, exact, strict=True) if a.numel() >= 1024 and bool(e.any())]
    return [float((a - e).square().sum() / e.square().sum()) for a, e in large]


def ddp(rank: Rank, config: ThcConfig, network: NetworkConfig | None = None, **options: Any) -> dict[str, Any]:
    """Four steps: DDP rebuilds its buckets after the first one."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), find_unused_parameters=True, **options)
    state = ThcState(None, config, model=model, network=network, policy=CompressionPolicy(deadline_s=60))
    model.register_comm_hook(state, thc_hook)
    for step in range(4):
        x = torch.randn(16, 100, generator=torch.Generator().manual_seed(10 * step + rank.rank))
        own = copy.deepcopy(model.module)
        for part in (own, model):
            part.zero_grad()
            part(x, step % 2 == 1).square().sum().backward()
        exact = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in own.parameters()]
        for gradient in exact:
            dist.all_reduce(gradient)
            gradient /= rank.ranks
        averages = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    state.close()
    return {"average": torch.cat([a.flatten() for a in averages]), "errors": errors(averages, exact)}


def reducer(rank: Rank) -> dict[str, Any]:
    def tensors(number: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(number)
        return {str(i): scale * torch.randn(size, generator=random) for i, (size, scale) in enumerate(TENSORS)}

    averages = tensors(rank.rank)
    with ThcReducer(config=REQUANTIZED) as averager:
        averager.all_reduce(averages)
    all_ranks = [tensors(number) for number in range(rank.ranks)]
    exact = [torch.stack([own[name] for own in all_ranks]).mean(0) for name in averages]
    return {"average": torch.cat([*averages.values()]), "errors": errors([*averages.values()], exact)}


def main() -> None:
    with joined_rank() as rank:
        network = NetworkConfig([rank.settings["server"]])
        rank.report(
            {
                "ddp": ddp(rank, CONFIG),
                "ddp, requantized sums": ddp(rank, REQUANTIZED, gradient_as_bucket_view=True),
                "ddp, thc-ps": ddp(rank, CONFIG, network),
                "ThcReducer": reducer(rank),
            }
        )


if __name__ == "__main__":
    main()
