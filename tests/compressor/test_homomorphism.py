"""The homomorphic property (paper, Definitions 1 and 2), and the error of the average gradient."""

from fractions import Fraction

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from server_oracle import ServerOracle

from byteps_thc import ServerCodes
from byteps_thc._scheme.adding.server_codes import ResolvedCodes
from byteps_thc._scheme.adding.tables import CODE_BITS

SETTINGS = settings(max_examples=30, deadline=None)
THC = [ServerCodes(), ServerCodes.paper(), ServerCodes(bits=2), ServerCodes(bits=3), ServerCodes.paper(value_bits=16)]
UNIFORM = [ServerCodes.uniform(bits) for bits in CODE_BITS]


def gradients(workers: int, size: int, seed: int, spread: float = 1.0) -> list[np.ndarray]:
    """A common part, and a part of each worker's own."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(size)
    return [(common + spread * rng.standard_normal(size)).astype(np.float32) for _ in range(workers)]


def unpacked(partitions, bits):
    return [reference.unpack(partition.codes, bits, partition.padded) for partition in partitions]


@given(config=st.sampled_from(THC + UNIFORM), n=st.integers(1, 8), size=st.integers(1, 3000), seed=st.integers(0, 99))
@SETTINGS
def test_definitions_1_and_2_codes_and_table_values_add(config, n, size, seed):
    """Decompressing a sum of the table's values, or of Uniform THC's codes, averages the workers' messages exactly."""
    workers = ServerOracle(config, n)
    partitions = workers.encode(gradients(n, size, seed))
    codes = np.array(unpacked(partitions, config.bits), np.int64)
    aggregate = workers.aggregate(partitions)
    if config in UNIFORM:
        np.testing.assert_array_equal(aggregate, codes.sum(axis=0))
    # mean_i(2 T[z_i] / g - 1) = 2 Y / (n g) - 1 in rational numbers, per coordinate, in units of the clamp.
    values = workers.compressors[0].table.values
    g = values[-1]
    for column, total in zip(codes[:, :200].T.tolist(), aggregate[:200].tolist(), strict=True):
        mean = sum((Fraction(2 * values[code], g) - 1 for code in column), Fraction(0)) / n
        assert mean == Fraction(2 * total, n * g) - 1


@given(config=st.sampled_from(THC + UNIFORM), n=st.integers(1, 6), size=st.integers(1, 3000), seed=st.integers(0, 99))
@SETTINGS
def test_decoding_the_sum_is_averaging_the_decoded(config, n, size, seed):
    workers = ServerOracle(config, n)
    partitions = workers.encode(gradients(n, size, seed))
    average = workers.decode(partitions[0], workers.aggregate(partitions), n)
    alone = [workers.decode(partition, workers.aggregate([partition]), 1) for partition in partitions]
    np.testing.assert_allclose(average, np.mean(alone, axis=0), atol=2e-5)


def test_a_partial_aggregate_averages_who_contributed():
    workers = ServerOracle(ServerCodes.paper(), 4)
    partitions = workers.encode(gradients(4, 5000, 1))
    average = workers.decode(partitions[0], workers.aggregate(partitions[:3]), 3)
    alone = [workers.decode(partition, workers.aggregate([partition]), 1) for partition in partitions[:3]]
    np.testing.assert_allclose(average, np.mean(alone, axis=0), atol=2e-5)
    assert not workers.decode(partitions[0], workers.aggregate(partitions), 0).any()


@pytest.mark.parametrize(
    "config", [ServerCodes.paper(error_feedback=False), ServerCodes.uniform(2, error_feedback=False)]
)
def test_error_is_what_the_table_promises(config):
    """One worker, full blocks: cost + clamp_cost, after the share that clamping takes is divided out (selection.py)."""
    gradient = gradients(1, 1 << 18, 3)[0]
    workers = ServerOracle(config, 1)
    table = workers.compressors[0].table
    error = workers.average([gradient]) - gradient
    measured = float(np.dot(error, error) / np.dot(gradient, gradient))
    expected = (table.cost + table.clamp_cost - table.p**2) / (1 - table.p) ** 2
    assert measured == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("n", [1, 4])
def test_what_ships_without_feedback_is_unbiased(n):
    """The mean of 10^4 averages is the gradients' mean, as a whole and by coordinates, though p is 1/64 and 1/512.

    As a whole: the errors' projections on it have a mean within 5 of their standard errors, some 3e-5 and 1e-5 of the
    mean. It was 463 and 131 standard errors off before averages were divided by 1 - p. By coordinates: where the
    repetitions' errors are independent, the energy of their sum is the sum of their energies, with a relative deviation
    of sqrt(2 / size); it was 138 and 8 times as much. A block of 4096 is closer to a normal distribution than both.
    """
    repetitions, size = 10_000, 4096
    workers = ServerOracle(ServerCodes(error_feedback=False), n)
    gradients_ = [g / np.linalg.norm(g) for g in gradients(n, size, 7)]  # exact for equal norms
    wanted = np.mean(gradients_, axis=0, dtype=np.float64)
    total, energy, projections = np.zeros(size), 0.0, np.empty(repetitions)
    for repetition in range(repetitions):
        error = workers.average(gradients_, round=repetition) - wanted
        total += error
        energy += float(np.dot(error, error))
        projections[repetition] = np.dot(error, wanted)
    standard_error = float(projections.std()) / repetitions**0.5
    assert standard_error < 1e-4 * np.dot(wanted, wanted)
    assert abs(projections.mean()) < 5 * standard_error
    assert np.dot(total, total) < energy * (1 + 5 * (2 / size) ** 0.5)


def test_workers_of_other_norms_weigh_at_most_what_clamping_takes_too_much():
    """A worker with a smaller norm than the largest is hardly clamped, and divided all the same: 1 / (1 - p)."""
    workers = ServerOracle(ServerCodes(granularity=15, p=1 / 8, error_feedback=False), 2)
    large, small = gradients(2, 1 << 17, 3, spread=9.0)
    small = small - large * (np.dot(large, small) / np.dot(large, large))  # so that each has its own weight
    small *= np.float32(0.1)
    average = workers.average([large, small])
    weights = [2 * float(np.dot(average, g) / np.dot(g, g)) for g in (large, small)]
    assert weights[0] == pytest.approx(1.0, abs=0.01)
    assert weights[1] == pytest.approx(1 / (1 - 1 / 8), abs=0.03)


def test_feedback_decodes_with_the_clamp_itself():
    for config in (
        ServerCodes(error_feedback=True),
        ServerCodes.paper(),
        ServerCodes(bits=2, value_bits=16, error_feedback=True),
    ):
        for workers in (1, 4, 17 if config.granularity == "auto" else 8):
            resolved = config.resolve(workers)
            assert resolved.decode_threshold == resolved.table.threshold
            without = ResolvedCodes(
                config.model_copy(update={"error_feedback": False}), workers, resolved.table, resolved.value_bits
            )
            assert without.decode_threshold == resolved.table.threshold / (1 - resolved.table.p)
            assert without.shared_hash != resolved.shared_hash  # they would decode different averages


@pytest.mark.parametrize("bits", [2, 4])
def test_a_single_large_coordinate_comes_back_by_what_clamping_takes_too_large(bits):
    """Rotation spreads it evenly, so that nothing is clamped, and the average is divided all the same."""
    gradient = np.zeros(1024, np.float32)
    gradient[77] = 3
    workers = ServerOracle(ServerCodes(bits=bits, error_feedback=False), 2)
    p = workers.compressors[0].table.p
    weights = [float(workers.average([gradient, gradient], round=r)[77]) / 3 for r in range(300)]
    standard_error = float(np.std(weights)) / 300**0.5
    assert standard_error < 0.05 * p
    assert np.mean(weights) == pytest.approx(1 / (1 - p), abs=5 * standard_error)
