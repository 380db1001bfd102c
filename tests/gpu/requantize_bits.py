"""The kernels of requantized sums against the bits of the reference; kernel_bits.py says how they are compared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import reference
import torch
from kernel_bits import FLOATS, KEY, Case, check_cases, key_of, place, same, to_bfloat16

from byteps_thc.gpu import kernels
from byteps_thc.gpu_limits import SCALE_GROUP
from byteps_thc.rounding import Rounding
from byteps_thc.tables import LookupTable
from byteps_thc.tables.device import DeviceTable

REQUANTIZE_DOMAIN = 0xFFFFFFFF


def down_table(case: Case, device: str) -> tuple[LookupTable, DeviceTable]:
    table = LookupTable.solve(case.bits, min(10 * case.bits + 185, 255), 1 / 500)
    return table, DeviceTable.of(table, torch.device(device))


def requantize(sums: np.ndarray[Any, Any], most: int, table: LookupTable) -> tuple[Any, Any]:
    """Return (codes, scales, bfloat16 bits) of the sums of a partition."""
    centered = (2 * sums.astype(np.int32) - most).astype(np.float32)
    groups = [centered[i : i + SCALE_GROUP] for i in range(0, len(sums), SCALE_GROUP)]
    scales = np.array([(np.abs(group).max().view(np.uint32) + 0xFFFF) >> 16 for group in groups], np.uint32)
    limits = (scales << 16).view(np.float32)
    sizes = reference.block_sizes(len(sums), SCALE_GROUP)
    maxima = limits[(np.cumsum(sizes) - sizes) // SCALE_GROUP]
    rounding = Rounding(REQUANTIZE_DOMAIN, 0)
    codes = reference.quantize(centered, maxima, len(sums), SCALE_GROUP, table.values, 1.0, KEY, rounding).codes
    return codes, scales.astype(np.uint16)


def some_sums(case: Case, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Sums about a middle, all the same in the first group, and at both ends in the second one."""
    most = case.granularity * case.workers
    sums = np.clip(np.round(rng.standard_normal(case.coordinates) * most / 12 + most / 2), 0, most)
    sums[:SCALE_GROUP] = most // 2
    sums[SCALE_GROUP : 2 * SCALE_GROUP : 3] = most
    sums[SCALE_GROUP + 1 : 2 * SCALE_GROUP : 3] = 0
    return sums.astype(np.uint8 if case.value_bits == 8 else np.uint16)


def check_requantize(case: Case, device: str, rng: np.random.Generator) -> None:
    """chunk: where in the partition the sums begin."""
    first, most = case.chunk or 0, case.granularity * case.workers
    table, on_device = down_table(case, device)
    sums = some_sums(case, rng)
    wanted, scales = requantize(sums, most, table)
    sums = sums[first:]
    codes = place(torch.full((len(sums) * case.bits // 8,), 0xA5, dtype=torch.uint8), device, case.offset)
    mine = torch.full((len(scales) - first // SCALE_GROUP,), 7, dtype=torch.int16, device=device).view(torch.uint16)
    kernels.requantize(
        place(torch.from_numpy(sums), device, case.offset), codes, mine, table=on_device,
        key=key_of(device, Rounding(REQUANTIZE_DOMAIN, 0)), first=first, most=most,
    )  # fmt: skip
    same("scales", mine, scales[first // SCALE_GROUP :])
    same("codes", codes, reference.pack(wanted[first:], case.bits))


def check_expand(case: Case, device: str, rng: np.random.Generator) -> None:
    """coordinates: of each worker's shard."""
    most = case.granularity * case.workers
    table, on_device = down_table(case, device)
    codes = rng.integers(0, 1 << case.bits, (case.workers, case.coordinates)).astype(np.uint8)
    groups = case.coordinates // SCALE_GROUP
    limits = (rng.random((case.workers, groups)) * most).astype(np.float32)
    scales = to_bfloat16(limits)
    packed = np.stack([reference.pack(shard, case.bits) for shard in codes])
    filled = -(packed.shape[1] + 2 * groups) % 16
    shards = np.concatenate([packed, scales.view(np.uint8), np.full((case.workers, filled), 0xA5, np.uint8)], 1)
    values = torch.full((codes.size,), 0xA5, dtype=torch.uint8, device=device)
    ratios = torch.full((scales.size,), torch.nan, device=device)
    kernels.expand(torch.from_numpy(shards).to(device), values, ratios, table=on_device, most=most)
    same("values", values, np.array(table.values, np.uint8)[codes])
    same("ratios", ratios, (scales.astype(np.uint32) << 16).view(np.float32) / np.float32(most))


def check_decode(case: Case, device: str, rng: np.random.Generator) -> None:
    """Of requantized sums."""
    n, d = case.coordinates, case.block
    sizes = reference.block_sizes(n, d)
    threshold = float(np.float32(2.1538))
    values = rng.integers(0, case.granularity + 1, sum(sizes)).astype(np.uint8)
    maxima = np.abs(rng.standard_normal(len(sizes))).astype(np.float32) * np.float32(case.scale)
    if case.broken_block is not None:
        maxima[case.broken_block] = np.inf
    ratios = rng.random(-(-sum(sizes) // SCALE_GROUP)).astype(np.float32)
    ratios[:1] = 0
    mapped = np.zeros(len(values), np.float32)
    with np.errstate(invalid="ignore"):
        for start, size, norm in zip(np.cumsum(sizes) - sizes, sizes, maxima, strict=True):
            limits = ratios[np.arange(start, start + size) // SCALE_GROUP] * (np.float32(threshold) * norm)
            slope = np.float32(2) * limits / np.float32(case.granularity)
            mapped[start : start + size] = values[start : start + size] * slope - limits
            if not np.isfinite(norm):
                mapped[start : start + size] = np.nan
    wanted = reference.inverse_rotate(mapped, n, d, KEY)
    if case.floats == "bf16":
        wanted = to_bfloat16(wanted)
    out = place(torch.full((n,), 7.0, dtype=FLOATS[case.floats]), device, case.offset)
    kernels.decode(
        place(torch.from_numpy(values), device, case.offset), torch.from_numpy(ratios).to(device),
        torch.from_numpy(maxima).to(device), out, codes_per_chunk=SCALE_GROUP, rotation_block=d,
        granularity=case.granularity, threshold=threshold, key=key_of(device), value_bits=8, scaled=True,
    )  # fmt: skip
    same("average", out, wanted)


def small_cases() -> Iterator[tuple[Any, Case]]:
    yield check_requantize, Case(3 * 4096 + 512, bits=8, chunk=4096 + 256)
    yield check_requantize, Case(4096 + 192, bits=6, granularity=300, workers=100, value_bits=16, chunk=512, offset=1)
    yield check_requantize, Case(64, bits=7, granularity=63)
    yield check_requantize, Case(1024, bits=4, granularity=65535, workers=1, value_bits=16)
    yield check_expand, Case(4096 + 256, bits=8)
    yield check_expand, Case(512, bits=6, workers=3)
    yield check_expand, Case(768, bits=7, granularity=999)
    yield check_decode, Case(8192 + 256, granularity=255)
    yield check_decode, Case(12_357, granularity=200, block=512, offset=1, broken_block=2, floats="bf16")
    yield check_decode, Case(1000, block=64, granularity=245)


def large_cases() -> Iterator[tuple[Any, Case]]:
    yield from small_cases()
    for bits in range(4, 9):
        for workers, granularity, width in ((4, 30, 8), (2, 1000, 16), (1, 65535, 16), (600, 109, 16)):
            case = Case(100_032, bits=bits, granularity=granularity, workers=workers, value_bits=width, offset=bits % 2)
            yield check_requantize, case
            yield check_requantize, replace(case, chunk=256 * 77)
        for workers in (1, 2, 33):
            yield check_expand, Case(100_096, bits=bits, workers=workers)
    for log in range(6, 15):
        for scale in (1.0, 1e-30, 1e20):
            yield check_decode, Case(3 * 16384 + 8192 + 1999, block=1 << log, granularity=255, scale=scale)


if __name__ == "__main__":
    sys.exit(check_cases(small_cases, large_cases))
