"""A rank that trains the same FSDP2 model as it is and compiled, in place, block by block and wrapped."""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc.fsdp import compress
from thc_lab.ranks import joined_rank


def train(rank: int, mesh: DeviceMesh, compiled: str) -> list[Tensor]:
    """Return the parameters after three steps. The back end keeps torch's own kernels, so that bits can be compared."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24)) for _ in range(2)))
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    called: nn.Module = model
    if compiled == "in place":
        model.compile(backend="aot_eager")
    elif compiled == "blocks":
        for block in model:
            block.compile(backend="aot_eager")
    elif compiled == "wrapped":
        called = torch.compile(model, backend="aot_eager")
    compress(called, policy=CompressionPolicy(bypass_elements=32), partition_bytes=4096)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        called(torch.randn(8, 24, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.full_tensor().detach().clone() for parameter in model.parameters()]


with joined_rank(timeout_s=100) as rank:
    mesh = init_device_mesh("cpu", (rank.ranks,))
    rank.report({kind: train(rank.rank, mesh, kind) for kind in ("no", "in place", "blocks", "wrapped")})
