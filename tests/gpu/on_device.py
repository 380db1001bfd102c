"""Checks that need a GPU: offsets beyond 2^31. Part of make bench-gpu."""

import numpy as np
import reference
import torch
from kernel_bits import FIRST, KEY, LARGEST_NORM, key_of, same, to_bfloat16
from torch import Tensor

from byteps_thc._scheme.adding.gpu import kernels
from byteps_thc._scheme.adding.gpu.tiles import TileTable
from byteps_thc._scheme.adding.tables import LookupTable
from byteps_thc._scheme.adding.tables.device import DeviceTable

BLOCK = 8192
GPU = torch.device("cuda")
TABLE = LookupTable.paper()


class Buffers:
    """One partition, encoded and decoded as if it were the only worker's."""

    def __init__(self, gradient: Tensor, residual: Tensor) -> None:
        n = gradient.numel()
        padded = -(-n // 64) * 64
        blocks = padded // BLOCK + (padded % BLOCK).bit_count()
        self.table = DeviceTable.of(TABLE, GPU)
        self.tiles = TileTable.of(n, (), BLOCK, GPU)
        self.gradient, self.residual = gradient, residual
        self.key = key_of("cuda")
        self.norms = torch.zeros(blocks, device=GPU)
        self.ranges = torch.zeros(blocks, 4, device=GPU)
        self.codes = torch.zeros(padded // 2, dtype=torch.uint8, device=GPU)
        self.keep = torch.zeros(1, dtype=torch.int32, device=GPU)
        self.clamped = torch.zeros(1, dtype=torch.int64, device=GPU)
        self.energy = torch.zeros(1, dtype=torch.float64, device=GPU)
        generator = torch.Generator(GPU).manual_seed(padded)
        self.sums = torch.empty(padded, dtype=torch.uint8, device=GPU)
        self.sums.random_(0, TABLE.granularity + 1, generator=generator)
        self.one = torch.ones(1, dtype=torch.uint8, device=GPU)
        self.out = torch.zeros_like(gradient)

    def go(self) -> None:
        kernels.block_norms(self.gradient, self.residual, self.norms, tiles=self.tiles)
        kernels.clamp_ranges(
            self.norms, self.norms, self.ranges, self.keep, self.clamped, self.energy,
            table=self.table, largest_norm=LARGEST_NORM,
        )  # fmt: skip
        kernels.encode(
            self.gradient, self.residual, self.ranges, self.codes, self.keep, self.clamped,
            table=self.table, key=self.key, keep_error=True, tiles=self.tiles,
        )  # fmt: skip
        kernels.decode(
            self.sums, self.one, self.norms, self.out, codes_per_chunk=self.sums.numel(),
            granularity=TABLE.granularity, threshold=self.table.threshold, key=self.key, tiles=self.tiles,
        )  # fmt: skip


def check_far_offsets() -> None:
    """The last blocks of 2^31 coordinates and a bit."""
    start = 1 << 31
    tail = 3 * BLOCK + 77
    gradient = torch.randn(start + tail, device=GPU, dtype=torch.bfloat16)
    mine = Buffers(gradient, torch.zeros(start + tail, device=GPU))
    mine.go()
    original = reference.philox
    reference.philox = lambda blocks, domain, key, rounds: original(
        blocks + np.uint64(start // 8 if domain else start // 128), domain, key, rounds
    )
    try:
        rotated, norms = reference.rotate(gradient[start:].float().cpu().numpy(), None, BLOCK, KEY)
        same("far norms", mine.norms[start // BLOCK :], norms)
        coded = reference.quantize(rotated, norms, tail, BLOCK, TABLE.values, TABLE.threshold, KEY, FIRST)
        same("far codes", mine.codes[start // 2 :], reference.pack(coded.codes, 4))
        same("far residual", mine.residual[start:], reference.inverse_rotate(coded.error, tail, BLOCK, KEY))
        sums = mine.sums[start:].cpu().numpy()
        one = np.ones(1, np.uint8)
        average = reference.decode(sums, one, norms, tail, 1 << 20, BLOCK, TABLE.granularity, mine.table.threshold, KEY)
        same("far average", mine.out[start:], to_bfloat16(average))
    finally:
        reference.philox = original


if __name__ == "__main__":
    check_far_offsets()
    print("same bits: offsets beyond 2^31")
