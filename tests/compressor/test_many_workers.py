"""More workers than packets have bits for, whose sums BytePS's servers make (byteps_thc/_base/limits.py)."""

import math

import numpy as np
import pytest
import reference
from server_oracle import ServerOracle

from byteps_thc import ServerCodes
from byteps_thc._base.arrays import everybody
from byteps_thc._base.limits import MAX_RANKS
from byteps_thc._native import _core
from byteps_thc._scheme.adding.server_codes import ResolvedCodes
from byteps_thc._scheme.rounding import Rounding

COORDINATES = 2048 + 64 + 7
BLOCK = 1024
KEY = reference.Key(5, 7, 11)
#: bits of a code, ranks
CASES = [
    (4, 65), (4, 256), (4, MAX_RANKS), (2, 85), (2, 86), (3, 1000), (5, MAX_RANKS), (6, MAX_RANKS), (8, MAX_RANKS),
    (1, 255),  # the most whose sums have 8 bits
    (8, 257),  # the most whose 8-bit codes are all used
]  # fmt: skip


def resolved_for(bits: int, workers: int, **settings: object) -> ResolvedCodes:
    return ServerCodes(**{"bits": bits, "rotation_block": BLOCK, "seed": KEY.seed} | settings).resolve(workers)


def of_all_ranks(resolved: ResolvedCodes, gradients: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return maxima of norms, sums of codes, and the averages of the first and the last rank."""
    oracle = ServerOracle(resolved, resolved.workers)
    partitions = oracle.encode(gradients, tensor=KEY.tensor, round=KEY.round)
    sums = oracle.aggregate(partitions)
    ends = [oracle.decode(partitions[rank], sums, resolved.workers, rank) for rank in (0, resolved.workers - 1)]
    return reference.max_norms([partition.norms for partition in partitions]), sums, np.stack(ends)


def normal_gradients(workers: int, size: int = COORDINATES) -> list[np.ndarray]:
    random = np.random.default_rng(workers)
    return [random.standard_normal(size, np.float32) for _ in range(workers)]


@pytest.mark.parametrize(("bits", "workers"), CASES)
@pytest.mark.parametrize("error_feedback", [True, False])
def test_kernels_equal_the_reference(bits: int, workers: int, error_feedback: bool) -> None:
    resolved = resolved_for(bits, workers, error_feedback=error_feedback)
    table, gradients = resolved.table, normal_gradients(workers)
    maxima, kernels_sums, averages = of_all_ranks(resolved, gradients)
    codes = []
    for rank, gradient in enumerate(gradients):
        rotated, _ = reference.rotate(gradient, None, BLOCK, KEY)
        rounding = Rounding.of(resolved.codes.rounding, rank, workers)
        quantized = reference.quantize(
            rotated, maxima, COORDINATES, BLOCK, table.values, table.threshold, KEY, rounding
        )
        codes.append(quantized.codes)
    sums = reference.lookup_sum(codes, table.values)
    assert sums.max() > sums.min()
    np.testing.assert_array_equal(kernels_sums, sums)
    average = reference.decode(
        kernels_sums, everybody(workers), maxima, COORDINATES, len(sums), BLOCK, table.granularity,
        resolved.decode_threshold, KEY,
    )  # fmt: skip
    for mine in averages:
        np.testing.assert_array_equal(mine.view(np.uint32), average.view(np.uint32))


@pytest.mark.parametrize(("bits", "workers"), CASES)
@pytest.mark.parametrize("rounding", ["stratified", "independent"])
@pytest.mark.parametrize("error_feedback", [True, False])
def test_averages_err_as_the_table_says(bits: int, workers: int, rounding: str, error_feedback: bool) -> None:
    """Within five standard deviations of a sum over coordinates that are about normal; gradients have equal norms."""
    size = 8192
    resolved = resolved_for(bits, workers, rounding=rounding, rotation_block=size, error_feedback=error_feedback)
    gradients = [g * np.float32(math.sqrt(size) / np.linalg.norm(g)) for g in normal_gradients(workers, size)]
    error = of_all_ranks(resolved, gradients)[2][0] - np.mean(gradients, axis=0, dtype=np.float64)
    table = resolved.table
    expected = (table.average_cost(workers, resolved.codes.rounding) + table.clamp_cost) / workers
    if not error_feedback:  # averages are divided by the share that clamping leaves
        expected = (expected - table.p**2 / workers) / (1 - table.p) ** 2
    assert np.dot(error, error) / size == pytest.approx(expected, rel=5 * math.sqrt(2 / size))


@pytest.mark.parametrize("workers", [65, 256, MAX_RANKS])
def test_the_largest_sums_fit_and_decode(workers: int) -> None:
    """Every rank sends the largest code: no sum wraps, neither on the way nor in the end."""
    resolved = resolved_for(4, workers, granularity=65535 // workers)
    table = resolved.table
    assert resolved.value_bits == 16
    sums = np.zeros(4096, np.uint16)
    codes = np.full(sums.size // 2, 0xFF, np.uint8)
    for rank in range(workers):
        _core.lookup_sum(codes, table.array, sums, bits=4, add=rank > 0)
        assert (sums == (rank + 1) * table.granularity).all()
    out = np.empty(sums.size, np.float32)
    _core.decode(
        sums, np.array([workers], np.uint16), np.ones(1, np.float32), out, coordinates=sums.size,
        codes_per_chunk=sums.size, rotation_block=sums.size, granularity=table.granularity, threshold=table.threshold,
        seed=1, tensor=0, round=0,
    )  # fmt: skip
    # A constant is the transform of one coordinate.
    np.testing.assert_allclose(np.abs(out), [table.threshold, *[0] * (sums.size - 1)], rtol=1e-6)


@pytest.mark.parametrize("workers", [65, 100, 129, 255, 256, 257, 511, 777, 1023, MAX_RANKS])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
def test_there_is_a_table_for_every_number_of_workers(bits: int, workers: int) -> None:
    resolved = ServerCodes(bits=bits).resolve(workers)
    assert resolved.table.granularity * workers < 1 << resolved.value_bits
    assert len({Rounding.of("stratified", worker, workers) for worker in range(workers)}) == workers
