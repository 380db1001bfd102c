"""Every GPU kernel against the CPU's bits. On the CPU with TRITON_INTERPRET=1, else on the GPU: python kernel_bits.py

Prints a line for each case and ends with 1 where one differs. --large: sizes for a GPU. The oracle is
tests/lib/reference.py, which has the bits of byteps_thc._native._core (tests/reference).
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import reference
import torch
from torch import Tensor

from byteps_thc._base.arrays import everybody
from byteps_thc._scheme.adding.gpu import kernels
from byteps_thc._scheme.adding.gpu.tiles import TileTable
from byteps_thc._scheme.adding.tables import LookupTable
from byteps_thc._scheme.adding.tables.device import DeviceTable
from byteps_thc._scheme.keys import device_key
from byteps_thc._scheme.rounding import Rounding

KEY = reference.Key(0xF23456789ABCDEF0, 3_000_000_007, 2_900_000_000)
LARGEST_NORM = 2.0**96
FIRST, THIRD = (Rounding.of("independent", worker, 3) for worker in (0, 2))
FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """A partition to encode and decode."""

    coordinates: int
    block: int = 8192
    bits: int = 4
    granularity: int = 30
    floats: str = "fp32"
    scale: float = 1.0
    feedback: bool = True
    rounding: Rounding = THIRD
    infinite: bool = False  # a coordinate of the gradient
    broken_block: int | None = None  # whose max norm is infinite
    offset: int = 0  # elements by which arrays are not aligned
    value_bits: int = 8
    workers: int = 4
    chunk: int | None = None
    ends: tuple[int, ...] = ()  # of rotation blocks

    def tiles(self, device: str) -> TileTable:
        return TileTable.of(self.coordinates, self.ends, self.block, torch.device(device))


#: (check, case), see check_cases()
Cases = Callable[[], Iterator[tuple[Any, Case]]]


class MismatchError(Exception):
    """Bits differ."""


def same(what: str, got: Tensor, wanted: np.ndarray[Any, Any]) -> None:
    mine = got.detach().cpu()
    array = (mine.view(torch.uint16) if mine.dtype == torch.bfloat16 else mine).numpy().reshape(-1)
    wanted = wanted.reshape(-1)
    both_nan = np.isnan(array) & np.isnan(wanted) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
    if mine.dtype == torch.bfloat16:
        both_nan = torch.isnan(mine.reshape(-1)).numpy() & ((wanted & 0x7FFF) > 0x7F80)
    word = f"u{array.dtype.itemsize}"
    differ = (array.view(word) != wanted.astype(array.dtype, copy=False).view(word)) & ~both_nan
    if differ.any():
        j = int(np.argmax(differ))
        first = f"first [{j}]: {array[j]!r}, not {wanted[j]!r}"
        raise MismatchError(f"{what}: {int(differ.sum())} of {differ.size} differ, {first}")


def to_bfloat16(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return torch.from_numpy(np.ascontiguousarray(x)).to(torch.bfloat16).view(torch.uint16).numpy()


def place(values: Tensor, device: str, offset: int) -> Tensor:
    """A copy on the device that begins `offset` elements into its memory."""
    return torch.empty(values.numel() + offset, dtype=values.dtype, device=device)[offset:].copy_(values.reshape(-1))


def key_of(device: str, rounding: Rounding = FIRST) -> Tensor:
    words = {"seed": KEY.seed, "tensor": KEY.tensor, "round": KEY.round}
    return device_key(torch.device(device), **words, rounding=rounding)


def check_encode(case: Case, device: str, rng: np.random.Generator) -> None:
    table = LookupTable.solve(case.bits, case.granularity, 1 / 32)
    on_device = DeviceTable.of(table, torch.device(device))
    n, d = case.coordinates, case.block
    sizes = reference.block_sizes(n, d, case.ends)
    gradient = torch.from_numpy((rng.standard_normal(n) * case.scale).astype(np.float32)).to(FLOATS[case.floats])
    if case.infinite:
        gradient[5] = torch.inf
    residual: Any = (rng.standard_normal(n) * 0.1 * case.scale).astype(np.float32)
    with np.errstate(invalid="ignore"):
        rotated, norms = reference.rotate(
            gradient.float().numpy(), residual if case.feedback else None, d, KEY, case.ends
        )
    maxima = norms * np.float32(1.1)
    if case.broken_block is not None:
        maxima[case.broken_block] = np.inf
    keep = case.feedback and case.broken_block is None
    quantized = reference.quantize(
        rotated, maxima, n, d, table.values, table.threshold, KEY, case.rounding, ends=case.ends
    )
    carried = reference.inverse_rotate(quantized.error, n, d, KEY, case.ends) if keep else residual
    g = place(gradient, device, case.offset)
    r = place(torch.from_numpy(residual), device, case.offset)
    key = key_of(device, case.rounding)
    mine = torch.full((len(sizes),), torch.nan, device=device)
    kernels.block_norms(g, r if case.feedback else None, mine, tiles=case.tiles(device))
    same("norms", mine, norms)
    ranges = torch.full((len(sizes), 4), torch.nan, device=device)
    flags = torch.full((1,), 7, dtype=torch.int32, device=device)
    clamped = torch.full((1,), 7, dtype=torch.int64, device=device)
    energy = torch.full((1,), torch.nan, dtype=torch.float64, device=device)
    top = torch.from_numpy(maxima).to(device)
    kernels.clamp_ranges(mine, top, ranges, flags, clamped, energy, table=on_device, largest_norm=LARGEST_NORM)
    same("keep", flags, np.array([case.broken_block is None], np.int32))
    if not case.infinite and abs(float(energy) / float(np.square(norms, dtype=np.float64).sum()) - 1) > 1e-9:
        raise MismatchError("energy")
    packed = reference.pack(quantized.codes, case.bits)
    codes = place(torch.full((len(packed),), 0xA5, dtype=torch.uint8), device, case.offset)
    kernels.encode(
        g, r if case.feedback else None, ranges, codes, flags, clamped,
        table=on_device, key=key, keep_error=case.feedback, tiles=case.tiles(device),
    )  # fmt: skip
    same("codes", codes, packed)
    same("residual", r, carried)
    same("clamped", clamped, np.array([quantized.clamped], np.int64))


def check_decode(case: Case, device: str, rng: np.random.Generator) -> None:
    n, d = case.coordinates, case.block
    sizes = reference.block_sizes(n, d, case.ends)
    padded = sum(sizes)
    threshold = float(np.float32(2.1538))
    dtype = np.uint8 if case.value_bits == 8 else np.uint16
    sums = rng.integers(0, case.granularity * case.workers + 1, padded).astype(dtype)
    maxima = np.abs(rng.standard_normal(len(sizes))).astype(np.float32) * np.float32(case.scale)
    if case.broken_block is not None:
        maxima[case.broken_block] = np.nan
    chunk = case.chunk or max(padded, 64)
    contributions = everybody(case.workers).repeat(-(-padded // chunk))
    if case.chunk:
        contributions[rng.random(len(contributions)) < 0.2] = case.workers - 1
        contributions[-1] = 0
    shape = (n, chunk, d, case.granularity, threshold)
    wanted = reference.decode(sums, contributions, maxima, *shape, KEY, ends=case.ends)
    if case.floats == "fp16":
        wanted = reference.float16(wanted)
    elif case.floats == "bf16":
        wanted = to_bfloat16(wanted)
    key = key_of(device)
    out = place(torch.full((n,), 7.0, dtype=FLOATS[case.floats]), device, case.offset)
    kernels.decode(
        place(torch.from_numpy(sums), device, case.offset), torch.from_numpy(contributions).to(device),
        torch.from_numpy(maxima).to(device), out, codes_per_chunk=chunk,
        granularity=case.granularity, threshold=threshold, key=key, tiles=case.tiles(device),
    )  # fmt: skip
    same("average", out, wanted)


def small_cases() -> Iterator[tuple[Any, Case]]:
    base = Case(8192 + 4096 + 64 + 5)
    yield check_encode, Case(2 * 8192)
    yield check_encode, replace(base, floats="fp16", rounding=Rounding(1, 40_000))
    yield check_encode, replace(base, block=1024, floats="bf16", bits=3, granularity=21, offset=1)
    yield check_encode, Case(70, block=64, bits=1, granularity=1, feedback=False)
    yield check_encode, Case(16384 + 100, block=16384, bits=2, granularity=9, scale=1e-30)
    yield check_encode, Case(9000, bits=8, granularity=300, broken_block=1)
    yield check_encode, Case(500, block=128, granularity=7)
    yield check_encode, Case(8192, infinite=True, broken_block=0)
    yield check_encode, Case(3 * 256 + 17, block=256, bits=8, granularity=255)
    yield check_encode, Case(8192 + 64 + 5, bits=5, granularity=60, offset=1)
    yield check_encode, Case(70, block=64, bits=6, granularity=400)
    yield check_encode, Case(300, block=128, bits=7, granularity=200)
    yield check_decode, Case(2 * 8192)
    yield check_decode, replace(base, floats="fp16", offset=1)
    yield check_decode, replace(base, floats="fp16", scale=1e7, broken_block=1)  # beyond fp16's range
    yield check_decode, replace(base, floats="bf16", value_bits=16, workers=40, chunk=1024)
    yield check_decode, replace(base, block=512, chunk=128, broken_block=3)
    yield check_decode, Case(16384, block=16384, value_bits=16, workers=50)
    yield check_decode, replace(base, value_bits=16, workers=1000, chunk=1024, granularity=63)
    yield check_decode, Case(8192, value_bits=16, workers=1024, granularity=17)
    yield check_encode, replace(base, rounding=Rounding(1, 52_429))
    yield check_decode, replace(base, workers=3, chunk=1024, floats="fp16")
    ended = Case(3 * 8192 + 700, ends=(1280, 1408, 1408 + 8192, 2 * 8192 + 128))
    yield check_encode, ended
    yield check_encode, replace(ended, block=1024, bits=5, granularity=60)
    yield check_encode, replace(ended, coordinates=8192, ends=(8064,), floats="bf16", feedback=False, offset=1)
    yield check_encode, replace(ended, block=16384, infinite=True, broken_block=0)
    yield check_decode, ended
    yield check_decode, replace(ended, block=512, floats="bf16", chunk=1024, value_bits=16, workers=40, broken_block=3)
    yield check_decode, replace(ended, floats="fp16")
    yield check_decode, replace(ended, workers=3, chunk=1024)


def large_cases() -> Iterator[tuple[Any, Case]]:
    yield from small_cases()
    for floats in FLOATS:
        for bits, granularity in ((1, 3), (2, 9), (3, 12), (4, 30), (5, 60), (6, 126), (7, 200), (8, 255), (4, 600)):
            yield check_encode, Case(5 * 8192 + 777, bits=bits, granularity=granularity, floats=floats)
    for log in range(6, 15):
        for offset in (0, 1):
            case = Case(3 * 16384 + 8192 + 1999, block=1 << log, offset=offset)
            yield check_encode, case
            yield check_decode, case
            yield check_decode, replace(case, chunk=1024, value_bits=16, workers=60)
            yield check_decode, replace(case, chunk=64)
    for n in (1, 63, 64, 65, 8191, 8192, 8193, 1 << 20):
        yield check_encode, Case(n, rounding=Rounding(1, 12345))
        yield check_decode, Case(n)
    for scale in (1e-38, 1e-20, 1e20):
        yield check_encode, Case(20_000, scale=scale)
        yield check_decode, Case(20_000, scale=scale)


def check_cases(small: Cases, large: Cases) -> int:
    """Check the cases that the command line selects; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", default="", help="part of a check's name")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th case, from the i-th on")
    arguments = parser.parse_args()
    index, parts = map(int, arguments.part.split("/"))
    failed = count = 0
    cases = [*(large() if arguments.large else small())]
    for number, (check, case) in enumerate(cases):
        if arguments.only not in check.__name__ or number % parts != index:
            continue
        count += 1
        try:
            check(case, arguments.device, np.random.default_rng(number))
            if not arguments.large:
                print(f"same bits: {check.__name__} {case}", flush=True)
        except MismatchError as error:
            failed += 1
            print(f"DIFFERENT: {check.__name__} {case}: {error}", flush=True)
    print(f"{count - failed} of {count} cases have the same bits")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(check_cases(small_cases, large_cases))
