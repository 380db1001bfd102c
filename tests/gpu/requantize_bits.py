"""The kernels of requantized sums against the bits of the reference; kernel_bits.py says how they are compared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import reference
import torch
from kernel_bits import FIRST, FLOATS, KEY, Case, check_cases, key_of, place, same, to_bfloat16

from byteps_thc.compressor import SCALE_GROUP, requantized_shard
from byteps_thc.gpu import kernels
from byteps_thc.gpu.requantize import places_of
from byteps_thc.rounding import REQUANTIZE_DOMAIN, Rounding
from byteps_thc.tables import LookupTable
from byteps_thc.tables.device import DeviceTable
from byteps_thc.tables.known_error import known_errors
from byteps_thc.tables.selection import down_table


def on_device(case: Case, device: str) -> tuple[LookupTable, DeviceTable]:
    """The table of `case.bits` that sums are requantized with."""
    table = down_table(case.bits)
    return table, DeviceTable.of(table, torch.device(device))


def upper_halves(scales: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (scales.view(np.uint32) >> 16).astype(np.uint16)


def some_sums(case: Case, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Sums about a middle, all the same in the first group, and at both ends in the second one."""
    most = case.granularity * case.workers
    sums = np.clip(np.round(rng.standard_normal(case.coordinates) * most / 12 + most / 2), 0, most)
    sums[:SCALE_GROUP] = most // 2
    sums[SCALE_GROUP : 2 * SCALE_GROUP : 3] = most
    sums[SCALE_GROUP + 1 : 2 * SCALE_GROUP : 3] = 0
    return sums.astype(np.uint8 if case.value_bits == 8 else np.uint16)


def known_of(case: Case, device: str) -> tuple[reference.KnownSum | None, dict[str, Any]]:
    """What is subtracted from sums, if anything: as the reference takes it, and the kernels."""
    if not case.known:
        return None, {}
    of_sum = known_errors(LookupTable.solve(4, 15, 1 / 32), case.workers).sum
    there = {"known": torch.tensor(of_sum, device=device), "workers": case.workers}
    return reference.KnownSum(of_sum, case.workers, FIRST.domain), there


def check_requantize(case: Case, device: str, rng: np.random.Generator) -> None:
    """chunk: where in the partition the sums begin."""
    first = case.chunk or 0
    table, there = on_device(case, device)
    sums = some_sums(case, rng)
    known, subtracted = known_of(case, device)
    wanted, scales = reference.requantize(sums, first, case.workers, case.granularity, table.values, KEY, known)
    codes = place(torch.full((len(sums) * case.bits // 8,), 0xA5, dtype=torch.uint8), device, case.offset)
    mine = torch.full((len(scales),), 7, dtype=torch.int16, device=device).view(torch.uint16)
    kernels.requantize(
        place(torch.from_numpy(sums), device, case.offset), codes, mine, table=there,
        key=key_of(device, Rounding(REQUANTIZE_DOMAIN, 0)),
        places=places_of([(0, first, len(sums), 0)], torch.device(device)), most=case.workers * case.granularity,
        own_key=key_of(device), **subtracted,
    )  # fmt: skip
    same("scales", mine, upper_halves(scales))
    same("codes", codes, reference.pack(wanted, case.bits))


def check_keep_loss(case: Case, device: str, rng: np.random.Generator) -> None:
    """Of a shard, 3/4 of the partition's coordinates, that begins at `chunk`. feedback: whether it is kept."""
    n, d, first = case.coordinates, case.block, case.chunk or 0
    threshold = float(np.float32(2.1538))
    table, there = on_device(case, device)
    sizes = reference.block_sizes(n, d, case.ends)
    count = min(sum(sizes) - first, sum(sizes) * 3 // 4 // SCALE_GROUP * SCALE_GROUP or sum(sizes))
    sums = some_sums(replace(case, coordinates=count), rng)
    of = (sums, first, case.workers, case.granularity)
    known, subtracted = known_of(case, device)
    codes, scales = reference.requantize(*of, table.values, KEY, known)
    maxima = np.abs(rng.standard_normal(len(sizes))).astype(np.float32) * np.float32(case.scale)
    if case.broken_block is not None:
        maxima[case.broken_block] = np.inf
    residual: Any = rng.standard_normal(n).astype(np.float32)
    of_partition = maxima, n, d, threshold, KEY, known, case.ends
    lost = reference.requantizing_loss(*of, (codes, scales), table.values, *of_partition)
    wanted = residual + lost
    if case.kept == "bf16":
        residual = reference.bfloat16(residual)
        wanted = reference.bfloat16(reference.from_bfloat16(residual) + lost)
    if not case.feedback:
        wanted = residual
    mine = place(torch.from_numpy(residual).view(FLOATS[case.kept]), device, case.offset)
    kernels.keep_loss(
        place(torch.from_numpy(sums), device, case.offset),
        place(torch.from_numpy(reference.pack(codes, case.bits)), device, case.offset),
        torch.from_numpy(upper_halves(scales)).to(device), torch.from_numpy(maxima).to(device), mine,
        torch.tensor([int(case.feedback)], dtype=torch.int32, device=device), table=there, key=key_of(device),
        first=first, most=case.workers * case.granularity, granularity=case.granularity, threshold=threshold,
        rotation_block=d, tiles=case.tiles(device, always=True), **subtracted,
    )  # fmt: skip
    same("residual", mine, wanted)


def check_decode(case: Case, device: str, rng: np.random.Generator) -> None:
    """Of requantized sums that were `workers` * `granularity` at most, in shards of as many workers."""
    n, d, most = case.coordinates, case.block, case.workers * case.granularity
    table, there = on_device(case, device)
    sizes = reference.block_sizes(n, d, case.ends)
    threshold = float(np.float32(2.1538))
    padded, each = sum(sizes), requantized_shard(sum(sizes), case.workers)
    codes = rng.integers(0, 1 << case.bits, (case.workers, each)).astype(np.uint8)
    maxima = np.abs(rng.standard_normal(len(sizes))).astype(np.float32) * np.float32(case.scale)
    if case.broken_block is not None:
        maxima[case.broken_block] = np.inf
    largest = rng.integers(0, most + 1, case.workers * each // SCALE_GROUP)
    largest[:1] = 0
    scales = np.array([reference.scale_of(magnitude) for magnitude in largest], np.float32)
    values = np.array(table.values, np.uint8)[codes].reshape(-1)[:padded]
    of_groups = scales[: -(-padded // SCALE_GROUP)] / np.float32(most)
    wanted = reference.decode_requantized(values, of_groups, maxima, n, d, table.granularity, threshold, KEY, case.ends)
    if case.floats == "bf16":
        wanted = to_bfloat16(wanted)
    packed = np.stack([reference.pack(shard, case.bits) for shard in codes])
    parts = [packed, upper_halves(scales).reshape(case.workers, -1).view(np.uint8)]
    filled = -sum(part.shape[1] for part in parts) % 16
    shards = np.concatenate([*parts, np.full((case.workers, filled), 0xA5, np.uint8)], 1)
    out = place(torch.full((n,), 7.0, dtype=FLOATS[case.floats]), device, case.offset)
    kernels.decode_requantized(
        torch.from_numpy(shards).to(device), torch.from_numpy(maxima).to(device), out, table=there, shard_codes=each,
        most=most, rotation_block=d, threshold=threshold, key=key_of(device), tiles=case.tiles(device),
    )  # fmt: skip
    same("average", out, wanted)


def small_cases() -> Iterator[tuple[Any, Case]]:
    yield check_requantize, Case(3 * 4096 + 512, bits=8, chunk=4096 + 256)
    yield check_requantize, Case(4096 + 192, bits=6, granularity=300, workers=100, value_bits=16, chunk=512, offset=1)
    yield check_requantize, Case(64, bits=7, granularity=63)
    yield check_requantize, Case(1024, bits=4, granularity=65535, workers=1, value_bits=16)
    yield check_requantize, Case(4096 + 192, bits=6, chunk=4096, known=True)
    yield check_keep_loss, Case(3 * 8192 + 4096 + 192, bits=6, chunk=8192 + 4096 + 256)
    yield check_keep_loss, Case(10_001, block=512, bits=5, granularity=300, value_bits=16, chunk=512, offset=1)
    yield check_keep_loss, Case(8192 + 2048, block=1024, bits=8, granularity=63, broken_block=2)
    yield check_keep_loss, Case(8192 + 2048 + 9, block=1024, bits=6, granularity=63, kept="bf16", offset=1)
    yield check_keep_loss, Case(1000, block=64, bits=7, granularity=63, feedback=False)
    yield check_keep_loss, Case(8192 + 1000, block=4096, bits=6, chunk=4096 + 256, known=True)
    yield check_keep_loss, Case(2 * 16384, block=16384, bits=4, granularity=63, chunk=16384)
    ended = Case(3 * 8192 + 700, bits=6, granularity=63, chunk=2048, ends=(1280, 1408, 1408 + 8192, 2 * 8192 + 128))
    yield check_keep_loss, ended
    yield check_keep_loss, replace(ended, block=512, bits=5, chunk=8192 + 256)
    yield check_decode, Case(8192 + 256, bits=6, workers=3)
    yield check_decode, Case(12_357, bits=8, granularity=300, block=512, offset=1, broken_block=2, floats="bf16")
    yield check_decode, Case(1000, bits=7, block=64, granularity=1, workers=1)
    yield check_decode, replace(ended, bits=5, workers=33)


def large_cases() -> Iterator[tuple[Any, Case]]:
    yield from small_cases()
    for bits in range(4, 9):
        for workers, granularity, width in ((4, 30, 8), (2, 1000, 16), (1, 65535, 16), (600, 109, 16)):
            case = Case(100_032, bits=bits, granularity=granularity, workers=workers, value_bits=width, offset=bits % 2)
            yield check_requantize, case
            yield check_requantize, replace(case, known=True)
            yield check_requantize, replace(case, chunk=256 * 77)
            for log in (6, 9, 13, 14):
                yield check_keep_loss, replace(case, block=1 << log, known=log % 2 == 0)
                yield check_keep_loss, replace(case, block=1 << log, chunk=256 * 77, coordinates=100_001)
        for workers in (1, 2, 33):
            yield check_decode, Case(100_096, bits=bits, workers=workers)
    for log in range(6, 15):
        for scale in (1.0, 1e-30, 1e20):
            yield check_decode, Case(3 * 16384 + 8192 + 1999, bits=6, block=1 << log, scale=scale)


if __name__ == "__main__":
    sys.exit(check_cases(small_cases, large_cases))
