"""Kernels of blocks of 64 (evaluation/averages/blocks.py, a candidate among ranks) against memcpy, one thread.

Their codes, scales and averages are those of the Python text, to the bit, or this ends with an error. Beyond the cache:
partitions of 2^20 floats, 256 MiB in all.

    python evaluation/benchmarks/bench_blocks.py [--json build/bench/blocks.json]
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from averages import blocks
from averages.blocks import BLOCK, TILE, Codes, Dither
from bench_kernels import COORDINATES, STREAM_PARTITIONS, with_huge_pages
from bench_memif import built
from ratio import Row, at_most, compared, medians_us, report

from byteps_thc._native import _core
from byteps_thc._scheme.arrays import F32, U8

RANKS = 4
BLOCKS = COORDINATES // BLOCK
WIDTHS = (1, 2, 3, 4, 5, 8)
#: Widths of codes that may take so much of memcpy's time.
TARGETED = (4, 5)
MOST_TO_ENCODE = 1.15 if _core.instruction_sets()[0].startswith("avx3") else 1.5
MOST_TO_DECODE = 1.1


class Kernels:
    """block_codes.cc, with so many bits a code."""

    def __init__(self, library: ctypes.CDLL, bits: int) -> None:
        self._library, self.bits = library, bits

    def encode(self, x: F32, dither: Dither, codes: U8, scales: U8) -> None:
        first = (ctypes.c_uint32(int(start[0])) for start in (dither.levels, dither.scales))
        self._library.encode_blocks(
            _at(x), ctypes.c_size_t(x.size // BLOCK), ctypes.c_uint(self.bits), _mask(dither), *first, _at(codes),
            _at(scales),
        )  # fmt: skip

    def decode(self, codes: U8, scales: U8, dithers: list[Dither], out: F32) -> None:
        """codes, scales: a row for each rank."""
        levels = np.array([dither.levels[0] for dither in dithers], np.uint32)
        self._library.decode_blocks(
            _at(codes), _at(scales), _at(levels), ctypes.c_size_t(len(dithers)), ctypes.c_size_t(out.size // BLOCK),
            ctypes.c_uint(self.bits), _mask(dithers[0]), _at(out),
        )  # fmt: skip


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _mask(dither: Dither) -> ctypes.c_uint64:
    return ctypes.c_uint64(int(np.packbits(dither.signs < 0, bitorder="little").view(np.uint64)[0]))


def room(bits: int, count: int) -> tuple[U8, U8]:
    """Codes and scales of so many blocks."""
    scales = np.zeros(-(-count // TILE) * (TILE + 1), np.uint8)
    return with_huge_pages(np.zeros(_core.code_bytes(count * BLOCK, bits), np.uint8)), scales


def unpacked(codes: U8, scales: U8, bits: int) -> Codes:
    """As blocks.encode() has them."""
    places = np.unpackbits(codes).reshape(-1, bits) @ (1 << np.arange(bits)[::-1])
    tiles = scales.reshape(-1, TILE + 1)
    return Codes(places.astype(np.uint8).reshape(-1, BLOCK), tiles[:, 1:], tiles[:, 0])


def difficult(random: np.random.Generator, count: int) -> F32:
    """float32[count, 64] of all sizes, blocks of zeros among them."""
    sizes = 2.0 ** random.integers(-40, 40, (count, 1)) * np.exp(2 * random.standard_normal((count, BLOCK)))
    kept = random.random((count, 1)) < 0.9
    x: F32 = (random.standard_normal((count, BLOCK)) * sizes * kept).astype(np.float32)
    return x


def require_same_bits(kernels: Kernels) -> None:
    """Raise AssertionError unless kernels and Python agree."""
    bits, count = kernels.bits, 1000  # the last tile is not full
    random = np.random.default_rng(bits)
    shared = Dither.of(random, count)
    total, dithers, sent = np.float32(0), list[Dither](), list[tuple[U8, U8]]()
    for rank in range(RANKS):
        x, dither = difficult(random, count), shared.of_rank(rank, RANKS)
        codes, scales = room(bits, count)
        kernels.encode(x, dither, codes, scales)
        expected = blocks.encode(x, bits, dither)
        for ours, theirs in zip(unpacked(codes, scales, bits), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        total = total + blocks.decode(expected, bits, dither, RANKS)
        dithers.append(dither)
        sent.append((codes, scales))
    out = np.zeros((count, BLOCK), np.float32)
    kernels.decode(*(np.concatenate(parts) for parts in zip(*sent, strict=True)), dithers, out)
    np.testing.assert_array_equal(out, blocks.rotate_back(np.asarray(total), shared))


def turns(calls: list[Callable[[], None]]) -> Callable[[], None]:
    """The next of them each time."""
    cycle = itertools.cycle(calls)
    return lambda: next(cycle)()


def measure(kernels: Kernels, gradients: list[F32], averages: list[F32], repeats: int) -> list[Row]:
    bits, dither = kernels.bits, Dither.of(np.random.default_rng(1), BLOCKS)
    sent = [room(bits, BLOCKS) for _ in gradients]
    quarters = [dither.of_rank(rank, RANKS) for rank in range(RANKS)]

    def encode(i: int) -> None:
        kernels.encode(gradients[i], dither, *sent[i])

    def decode(i: int) -> None:
        kernels.decode(*sent[i], [dither], averages[i])

    def average_quarter(i: int) -> None:
        kernels.decode(*sent[i], quarters, averages[i][: COORDINATES // RANKS])

    def copy(i: int) -> None:
        np.copyto(averages[i], gradients[i])

    works = {"copy": copy, "encode": encode, "decode": decode, "average": average_quarter}
    us = {}
    for name, work in works.items():
        calls = [lambda i=i, work=work: work(i) for i in range(len(gradients))]
        us |= medians_us({name: turns(calls)}, repeats)
    rows = []
    for what, name, most in (
        (f"encode, blocks of 64, {bits} bits", "encode", MOST_TO_ENCODE),
        (f"decode, blocks of 64, {bits} bits", "decode", MOST_TO_DECODE),
        (f"average of a quarter, 4 ranks, blocks of 64, {bits} bits", "average", MOST_TO_DECODE),
    ):
        if bits in TARGETED:
            rows.append(at_most(what, us[name], "memcpy 4 MiB", us["copy"], most))
        else:
            rows.append(compared(what, us[name], "memcpy 4 MiB", us["copy"]))
    return rows


def main() -> None:
    """Check, run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=200)
    args = parser.parse_args()
    random = np.random.default_rng(1)
    gradients = [with_huge_pages(random.standard_normal(COORDINATES, np.float32)) for _ in range(STREAM_PARTITIONS)]
    averages = [with_huge_pages(np.zeros(COORDINATES, np.float32)) for _ in range(STREAM_PARTITIONS)]
    library = ctypes.CDLL(str(built() / "tests/libblock_codes.so"))
    widths = [Kernels(library, bits) for bits in WIDTHS]
    for kernels in widths:
        require_same_bits(kernels)
    report([row for kernels in widths for row in measure(kernels, gradients, averages, args.repeats)], args.json)


if __name__ == "__main__":
    main()
