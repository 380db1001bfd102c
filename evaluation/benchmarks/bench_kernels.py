"""Kernels against memcpy, numpy and plain torch, one thread, one partition of 2^20 coordinates; and two threads.

Codes have four bits unless a row says otherwise; five and six bits are compared with four, too.

Two memory regimes: "cache" reuses the same buffers, which then live in the last-level cache; "stream" walks over 64
partitions (256 MiB), as the gradients of a model do. Two threads are measured against one on one large gradient.
Ranks that decode are measured beyond the cache, with each instruction set that has a target.
Gradients, averages, copies and codes of ranks have huge pages, where Linux has any left: with pages of 4 KiB in
fragmented memory, page walks add a tenth to encoding and decoding beyond the cache, and to memcpy.

    python evaluation/benchmarks/bench_kernels.py [--json build/bench/kernels.json]
"""

import argparse
import functools
import importlib
import itertools
import math
import mmap
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch_baseline
from ratio import Row, at_least, at_most, compared, medians_us, report

from byteps_thc import LookupTable
from byteps_thc._native import _core

COORDINATES = 1 << 20
BLOCK = 8192
STREAM_PARTITIONS = 64
HUGE_PAGE = 2 << 20
LARGE = 25 << 20
TABLE = LookupTable.paper()
#: Tables of more bits, and the limit of their encoding's time over four bits' time.
WIDER = ((LookupTable.solve(5, 255, Fraction(1, 128)), 1.3), (LookupTable.solve(6, 255, Fraction(1, 512)), 1.6))
#: Limit for lookup_sum, likewise.
WIDER_SUM = 3
KEY = {"seed": 7, "tensor": 1, "round": 2}
#: Ranks that decode: widths of codes, and each kernel's limit as a share of memcpy's time beyond the cache.
RANKS, BLOCK_BITS = 4, (4, 5)
MOST_TO_ENCODE = {"avx3": 1.15, "avx2": 1.5, "neon": 1.5}
MOST_TO_DECODE = 1.1
Own = TypeVar("Own")


def with_huge_pages(values: np.ndarray) -> np.ndarray:
    """Copy to memory of huge pages."""
    memory = mmap.mmap(-1, values.nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    begin = -array.ctypes.data % HUGE_PAGE
    copy = array[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[:] = values
    return copy


class Buffers:
    """One partition's arrays, and the threads that work on them."""

    def __init__(self, rng: np.random.Generator, coordinates: int = COORDINATES) -> None:
        self.pool: _core.ThreadPool | None = None
        self.gradient = with_huge_pages(rng.standard_normal(coordinates, np.float32))
        self.copy = with_huge_pages(np.zeros(coordinates, np.float32))
        self.residual = with_huge_pages(np.zeros(coordinates, np.float32))
        self.norms = np.zeros(coordinates // BLOCK, np.float32)
        self.aggregate = np.zeros(coordinates, np.uint8)
        self.average = with_huge_pages(np.zeros(coordinates, np.float32))
        self.contributions = np.ones(coordinates // 1024, np.uint16)
        self.use(TABLE)

    def use(self, table: LookupTable) -> None:
        """Encode with this table from now on."""
        self.table = table
        self.values = np.array(table.values, np.uint16)
        self.codes = np.zeros(_core.code_bytes(self.gradient.size, table.bits), np.uint8)
        self.encode()
        self.write_sum()

    def memcpy(self) -> None:
        np.copyto(self.copy, self.gradient)

    def encode(self) -> None:
        self._encode(None)

    def encode_with_feedback(self) -> None:
        self._encode(self.residual)

    def _encode(self, residual: np.ndarray | None) -> None:
        _core.block_norms(self.gradient, residual, self.norms, rotation_block=BLOCK, pool=self.pool)
        _core.encode(
            self.gradient, residual, self.norms, self.codes, rotation_block=BLOCK, values=self.values,
            bits=self.table.bits, threshold=self.table.threshold,
            domain=1, phase=0x8000, keep_error=residual is not None, pool=self.pool, **KEY,
        )  # fmt: skip

    def write_sum(self) -> None:
        _core.lookup_sum(self.codes, self.values, self.aggregate, bits=self.table.bits, add=False)

    def add_sum(self) -> None:
        _core.lookup_sum(self.codes, self.values, self.aggregate, bits=self.table.bits, add=True)

    def numpy_add(self) -> None:
        np.add(self.copy, self.gradient, out=self.copy)

    def decode(self) -> None:
        _core.decode(
            self.aggregate, self.contributions, self.norms, self.average, coordinates=self.average.size,
            codes_per_chunk=1024, rotation_block=BLOCK, granularity=self.table.granularity,
            threshold=self.table.threshold, pool=self.pool, **KEY,
        )  # fmt: skip

    def decode_codes(self) -> None:
        self.write_sum()
        self.decode()


class RankBuffers:
    """Arrays of a rank that decodes: its gradient, what it sends, and the shard that it owns. kernels: see by_set()."""

    def __init__(self, kernels: Any, gradient: np.ndarray, average: np.ndarray, bits: int) -> None:
        self._kernels, self._gradient, self._average = kernels, gradient, average
        self._how = {"bits": bits, **KEY}
        self._blocks = _core.BlockTable(np.arange(0, gradient.size, 64) << 7 | 64)
        count = len(self._blocks)
        self._codes = with_huge_pages(np.zeros((1, _core.code_bytes(gradient.size, bits)), np.uint8))
        self._scales = np.zeros((1, _core.scale_bytes(count)), np.uint8)
        self._shard = self._blocks.part(0, count // RANKS)
        self._down = np.zeros(self._codes.size // RANKS, np.uint8), np.zeros(self._scales.size // RANKS, np.uint8)
        self.encode()

    @property
    def _quarters(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows of a shard's owner, one for each rank; the codes of a rank are a shard of each here."""
        return self._codes.reshape(RANKS, -1), self._scales.reshape(RANKS, -1)

    def encode(self) -> None:
        self._kernels.encode_blocks(
            self._gradient, self._codes[0], self._scales[0], blocks=self._blocks, ranks=RANKS, **self._how
        )

    def decode(self) -> None:
        self._kernels.decode_blocks(
            self._codes, self._scales, self._average, blocks=self._blocks, down=True, **self._how
        )

    def average(self) -> None:
        self._kernels.decode_blocks(*self._quarters, self._average, blocks=self._shard, **self._how)

    def recode(self) -> None:
        bits = self._how["bits"]
        self._kernels.recode_blocks(*self._quarters, *self._down, blocks=self._shard, down_bits=bits, **self._how)


def by_set() -> Iterator[tuple[str, Any, float]]:
    """Kernels by instruction set, with the part of memcpy's time that encoding may take."""
    best = _core.instruction_sets()[0]
    if find_spec("_core_test") is None:  # only the package is installed
        yield best, _core, next((most for name, most in MOST_TO_ENCODE.items() if best.startswith(name)), math.inf)
        return
    tested = importlib.import_module("_core_test")
    supported = tested.instruction_sets()  # before one is chosen
    for name, most in MOST_TO_ENCODE.items():
        found = next((one for one in supported if one.startswith(name)), None)
        if found is not None:
            tested.use_instruction_set(found)
            yield found, tested, most
    tested.use_instruction_set(None)


def rank_rows(buffers: list[Buffers], repeats: int) -> Iterator[Row]:
    """The rows of ranks that decode each other's codes, beyond the cache."""
    methods = {
        "encode": RankBuffers.encode,
        "decode": RankBuffers.decode,
        "average of a quarter, 4 ranks": RankBuffers.average,
        "recode of a quarter, 4 ranks": RankBuffers.recode,
    }
    for (name, kernels, most_to_encode), bits in itertools.product(by_set(), BLOCK_BITS):
        own = [RankBuffers(kernels, one.gradient, one.average, bits) for one in buffers]
        calls: dict[str, Callable[[], None]] = {"memcpy": turns(buffers, Buffers.memcpy)}
        calls |= {what: turns(own, method) for what, method in methods.items()}
        us = {}
        for what, call in calls.items():
            us |= medians_us({what: call}, repeats)
        for what in methods:
            row = f"{what}, blocks of 64, {bits} bits, {name} (stream)"
            if what.startswith("recode"):
                yield compared(row, us[what], "memcpy 4 MiB", us["memcpy"])
            else:
                most = most_to_encode if what == "encode" else MOST_TO_DECODE
                yield at_most(row, us[what], "memcpy 4 MiB", us["memcpy"], most)


def turns(buffers: list[Own], method: Callable[[Own], None]) -> Callable[[], None]:
    """Call `method` on the next buffers each time."""
    cycle = itertools.cycle(buffers)
    return lambda: method(next(cycle))


def medians(buffers: list[Buffers], methods: tuple[Callable[[Buffers], None], ...], repeats: int) -> dict[str, float]:
    """Median times by the names of methods."""
    us = {}
    # One kernel at a time, so that in the cache regime each finds its own buffers there.
    for method in methods:
        us |= medians_us({method.__name__: turns(buffers, method)}, repeats)
    return us


def measure(regime: str, buffers: list[Buffers], repeats: int) -> list[Row]:
    """The rows of one memory regime."""
    kernels = (Buffers.encode, Buffers.encode_with_feedback, Buffers.decode, Buffers.decode_codes, Buffers.add_sum)
    us = medians(buffers, (Buffers.memcpy, *kernels, Buffers.numpy_add), repeats)
    rows = [
        at_least(f"lookup_sum, 2^20 codes ({regime})", us["add_sum"], "numpy.add fp32", us["numpy_add"], 8),
        at_most(f"encode, 2^20 floats ({regime})", us["encode"], "memcpy 4 MiB", us["memcpy"], 3),
        compared(f"encode with error feedback ({regime})", us["encode_with_feedback"], "memcpy 4 MiB", us["memcpy"]),
        at_most(f"decode, 2^20 floats ({regime})", us["decode"], "memcpy 4 MiB", us["memcpy"], 2),
    ]
    for table, encode_factor in WIDER:
        for one in buffers:
            one.use(table)
        wider = medians(buffers, kernels, repeats)
        bits = f"{table.bits} bits ({regime})"
        rows += [
            compared(f"lookup_sum, {bits}", wider["add_sum"], "numpy.add fp32", us["numpy_add"]),
            compared(f"encode, {bits}", wider["encode"], "memcpy 4 MiB", us["memcpy"]),
            compared(
                f"encode with error feedback, {bits}", wider["encode_with_feedback"], "memcpy 4 MiB", us["memcpy"]
            ),
            compared(f"lookup and decode of codes, {bits}", wider["decode_codes"], "memcpy 4 MiB", us["memcpy"]),
            at_most(f"lookup_sum, {bits}", wider["add_sum"], "4 bits", us["add_sum"], WIDER_SUM),
            at_most(f"encode, {bits}", wider["encode"], "4 bits", us["encode"], encode_factor),
            compared(f"lookup and decode of codes, {bits}", wider["decode_codes"], "4 bits", us["decode_codes"]),
        ]
    for one in buffers:
        one.use(TABLE)
    return rows


def against_torch(buffers: Buffers) -> Row:
    """Encode + decode against the same algorithm in torch operations."""
    gradient = torch.from_numpy(buffers.gradient)
    signs = torch.randint(0, 2, (COORDINATES,)).mul_(2).sub_(1).to(torch.float32)
    table = torch.tensor(TABLE.values, dtype=torch.float32)
    aggregate = torch.from_numpy(buffers.aggregate)

    def torch_both() -> None:
        _, norms = torch_baseline.encode(gradient, signs, table, TABLE.threshold, BLOCK)
        torch_baseline.decode(aggregate, 1, norms, signs, float(TABLE.granularity), TABLE.threshold, BLOCK)

    def own_both() -> None:
        buffers.encode()
        buffers.decode()

    us = medians_us({"own": own_both, "torch": torch_both}, 15)
    return at_least("encode + decode, 2^20 floats", us["own"], "plain torch CPU operations", us["torch"], 20)


def against_one_thread(rng: np.random.Generator, repeats: int) -> list[Row]:
    """Two threads against one."""
    buffers = Buffers(rng, LARGE)
    pool = _core.ThreadPool(2)

    def call(method: Callable[[Buffers], None], with_pool: _core.ThreadPool | None) -> None:
        buffers.pool = with_pool
        method(buffers)

    rows = []
    for what, method in (("encode with error feedback", Buffers.encode_with_feedback), ("decode", Buffers.decode)):
        alone, both = functools.partial(call, method, None), functools.partial(call, method, pool)
        us = medians_us({"alone": alone, "both": both}, repeats)
        rows.append(at_least(f"{what}, 25 * 2^20 floats, 2 threads", us["both"], "1 thread", us["alone"], 1.8))
    return rows


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--ranks", action="store_true", help="only kernels of ranks that decode")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    buffers = [Buffers(rng) for _ in range(STREAM_PARTITIONS)]
    if args.ranks:
        report([*rank_rows(buffers, args.repeats)], args.json)
        return
    rows = measure("cache", buffers[:1], args.repeats) + measure("stream", buffers, args.repeats)
    rows += rank_rows(buffers, args.repeats)
    rows.append(against_torch(buffers[0]))
    rows += against_one_thread(rng, args.repeats // 8)
    report(rows, args.json)


if __name__ == "__main__":
    main()
