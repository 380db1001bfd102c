"""What only a GPU can show: kernels in a CUDA graph, and offsets beyond 2^31. Part of make bench-gpu.

Fails with a MismatchError of kernel_bits.py.
"""

from __future__ import annotations

import nearest_bits
import numpy as np
import reference
import torch
from kernel_bits import FIRST, KEY, LARGEST_NORM, key_of, same, to_bfloat16
from torch import Tensor

from byteps_thc._scheme.gpu import kernels
from byteps_thc._scheme.gpu.nearest_batch import NearestBatch
from byteps_thc._scheme.keys import ROUND, set_round
from byteps_thc._scheme.tables import LookupTable
from byteps_thc._scheme.tables.device import DeviceTable

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
        kernels.block_norms(self.gradient, self.residual, self.norms, rotation_block=BLOCK)
        kernels.clamp_ranges(
            self.norms, self.norms, self.ranges, self.keep, self.clamped, self.energy,
            table=self.table, largest_norm=LARGEST_NORM,
        )  # fmt: skip
        kernels.encode(
            self.gradient, self.residual, self.ranges, self.codes, self.keep, self.clamped,
            rotation_block=BLOCK, table=self.table, key=self.key, keep_error=True,
        )  # fmt: skip
        kernels.decode(
            self.sums, self.one, self.norms, self.out, codes_per_chunk=self.sums.numel(), rotation_block=BLOCK,
            granularity=TABLE.granularity, threshold=self.table.threshold, key=self.key,
        )  # fmt: skip


def check_graph() -> None:
    """Rounds replayed from a graph, whose key counts on in device memory, are those of calls one by one."""
    gradient = torch.randn(5 * BLOCK + 1000, device=GPU)
    direct = Buffers(gradient, torch.zeros_like(gradient))
    replayed = Buffers(gradient, torch.zeros_like(gradient))
    warm = Buffers(gradient, torch.zeros_like(gradient))
    warm.go()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed.go()
        replayed.key[ROUND] += 1
    for round in range(3):
        set_round(direct.key, KEY.round + round)
        direct.go()
        graph.replay()
        for name in ("codes", "residual", "out", "clamped"):
            same(f"{name} in round {round}", getattr(replayed, name), getattr(direct, name).cpu().numpy())


def check_graph_of_ranks() -> None:
    """Rounds of ranks that decode, replayed with headers and rounds in device memory, are those of calls one by one."""
    case = nearest_bits.Case(5 * BLOCK + 1000, kinds=("normal",), ranks=1, exact=((5 * BLOCK, 5 * BLOCK + 10),))
    host = nearest_bits.Host(case)
    gradient = case.gradient(0).to(GPU)
    header, round = torch.zeros(4, dtype=torch.int32, device=GPU), torch.zeros(1, dtype=torch.int32, device=GPU)
    direct, replayed, warm = (nearest_bits.batches_of(case, host, "cuda")[0] for _ in range(3))
    outs = [torch.zeros_like(gradient) for _ in range(3)]
    memory = [(torch.zeros(host.up.size_bytes, dtype=torch.uint8, device=GPU),
               torch.zeros(host.down.size_bytes, dtype=torch.uint8, device=GPU)) for _ in range(3)]  # fmt: skip

    def go(batch: NearestBatch, out: Tensor, sent: Tensor, own: Tensor) -> None:
        batch.encode(gradient, sent, header, round)
        batch.recode(sent, own)
        batch.decode(own, out)

    go(warm, outs[2], *memory[2])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        go(replayed, outs[1], *memory[1])
    for number in range(3):
        round.fill_(number)
        words = nearest_bits.header_of(nearest_bits.FINGERPRINT + number)
        for word, value in zip(header.unbind(), words, strict=True):
            word.fill_(value)
        direct.encode(gradient, memory[0][0], words, number)
        direct.recode(*memory[0])
        direct.decode(memory[0][1], outs[0])
        graph.replay()
        same(f"average in round {number}", outs[1], outs[0].cpu().numpy())
        same(f"state in round {number}", replayed.agreement[0], direct.agreement[0].cpu().numpy())
    if replayed.agreement[1] or not outs[1].isfinite().all():
        raise nearest_bits.MismatchError("ranks differ")


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
        last = gradient[start:].float().cpu().numpy()
        rotated, norms = reference.rotate(last, None, BLOCK, KEY)
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
    check_graph()
    check_graph_of_ranks()
    print("same bits: rounds replayed from a CUDA graph")
    check_far_offsets()
    print("same bits: offsets beyond 2^31")
