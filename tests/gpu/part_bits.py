"""Shards by one launch each way have the bits of host copies by parameter; calls do not grow with parameters."""

import itertools

import torch
from recorded_calls import counted_calls

from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.hierarchy.exchange import BucketShards
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._scheme.gpu.part_copies import PartCopies

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Elements of parameters, 0 for a gap of seven: divisible and not, smaller than the ranks, larger than a tile.
LAYOUTS = [[1], [4000], [5, 0, 3, 1, 2, 2049], [1, 1, 1, 0], [1000] * 40 + [0, 7], [0, 3001, 64, 64, 0, 0, 17]]
RANKS = (1, 2, 3, 8)


def shards_of(sizes: list[int], ranks: int, dtype: torch.dtype) -> tuple[BucketShards, torch.Tensor]:
    """The layout of such a buffer, in host memory, and a gradient."""
    slices, position = [], 0
    for size in sizes:
        if size:
            slices.append(ParameterSlice(f"p{position}", position, position + size))
        position += size or 7
    gradient = torch.randn(position).to(dtype)
    gradient[0] = float("nan")
    buffer = GradientBuffer("bucket", gradient, tuple(slices))
    return BucketShards(buffer, 0, ranks, torch.device("cpu"), StatsRecorder()), gradient


def check(sizes: list[int], ranks: int, dtype: torch.dtype) -> None:
    shards, gradient = shards_of(sizes, ranks, dtype)
    wanted = torch.full((ranks, shards.columns), 7.0).to(dtype)
    shards.fill(wanted, gradient)
    copies = PartCopies([*shards.row_parts()], DEVICE)
    assert copies.size == wanted.numel()
    packed, on_device = torch.full((copies.size,), 3.0, device=DEVICE).to(dtype), gradient.to(DEVICE)
    with counted_calls() as calls:
        copies.pack(on_device, packed)
    assert calls == ["kernel"], calls
    assert bits(packed) == bits(wanted.view(-1))
    changed = torch.randn(copies.size).to(dtype)
    shards.take(changed.view(ranks, -1), gradient)
    with counted_calls() as calls:
        copies.unpack(changed.to(DEVICE), on_device)
    assert calls == ["kernel"], calls
    assert bits(on_device) == bits(gradient)


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.cpu().view(torch.uint8).tolist())


def main() -> None:
    torch.manual_seed(0)
    cases = list(itertools.product(LAYOUTS, RANKS, (torch.float32, torch.bfloat16)))
    for sizes, ranks, dtype in cases:
        check(sizes, ranks, dtype)
    print(f"same bits: {len(cases)} cases")


if __name__ == "__main__":
    main()
