"""Front ends with gradients on a GPU that two ranks share: the averages of the same gradients on the CPU, to the bit.

Part of make bench-gpu. Gradients are copied to the host (gloo), or stay on the device until the kernels (NCCL, which
takes one rank a GPU: groups of one rank). Fails with an AssertionError.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank, run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcReducer
from byteps_thc.ddp import compress

ROUNDS = 3
SHAPES = {"weight": (300, 1000), "bias": (1000,), "large": (5 << 20,)}


def gradients(rank: int, step: int, dtype: torch.dtype) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(10 * step + rank)
    return {name: torch.randn(*shape, generator=random).to(dtype) for name, shape in SHAPES.items()}


def averages(rank: int, device: str, dtype: torch.dtype, group: dist.ProcessGroup | None) -> list[Tensor]:
    """Of ROUNDS rounds, on the CPU."""
    results = []
    with ThcReducer(group, bits=4) as reducer:
        for step in range(ROUNDS):
            tensors = {name: tensor.to(device) for name, tensor in gradients(rank, step, dtype).items()}
            reducer.all_reduce(tensors)
            results += [tensor.cpu() for tensor in tensors.values()]
    return results


def check_reducer(rank: int, group: dist.ProcessGroup | None, on_cpu: dist.ProcessGroup | None) -> None:
    """`group` has this rank's device backend, on_cpu the same ranks and gloo."""
    for dtype in (torch.float32, torch.bfloat16):
        mine, wanted = averages(rank, "cuda", dtype, group), averages(rank, "cpu", dtype, on_cpu)
        assert all(torch.equal(a, b) for a, b in zip(mine, wanted, strict=True)), dtype


def check_ddp(rank: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10)).cuda()
    ddp = DistributedDataParallel(model, device_ids=[0])
    state = compress(ddp, bits=4)
    torch.manual_seed(rank + 1)
    inputs = torch.randn(64, 1000, device="cuda")
    with ddp.no_sync():
        ddp(inputs).square().mean().backward()
    exact = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).cpu()
    dist.all_reduce(exact)
    model.zero_grad()
    ddp(inputs).square().mean().backward()
    mine = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).cpu()
    largest, smallest = mine.clone(), mine.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    assert torch.equal(largest, smallest)
    error = float((mine - exact / 2).square().sum() / (exact / 2).square().sum())
    assert 0 < error < 0.1, error
    state.close()


def run(rank: Rank) -> str:
    torch.cuda.set_device(0)
    check_reducer(rank.rank, None, None)
    check_ddp(rank.rank)
    alone = [(dist.new_group([k], backend="nccl"), dist.new_group([k])) for k in range(rank.ranks)]
    check_reducer(rank.rank, *alone[rank.rank])
    return "done"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        assert run_ranks(Path(__file__), 2, Path(directory), timeout_s=240) == ["done", "done"]
    print("same bits: ThcReducer on gloo and on NCCL (one rank), fp32 and bf16; DDP's ranks agree")


def rank_main() -> None:
    with joined_rank() as rank:
        rank.report(run(rank))


if __name__ == "__main__":
    rank_main() if "THC_TEST_RANK" in os.environ else main()
