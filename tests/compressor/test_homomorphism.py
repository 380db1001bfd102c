"""The homomorphic property (paper, Definitions 1 and 2), and what the average gradient is worth."""

from fractions import Fraction

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_thc import ThcConfig
from byteps_thc.tables import CODE_BITS

SETTINGS = settings(max_examples=30, deadline=None)
THC = [ThcConfig(), ThcConfig.paper(), ThcConfig(bits=2), ThcConfig(bits=3), ThcConfig.paper(value_bits=16)]
UNIFORM = [ThcConfig.uniform(bits) for bits in CODE_BITS]


def gradients(workers: int, size: int, seed: int, spread: float = 1.0) -> list[np.ndarray]:
    """A common part, and a part of each worker's own."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(size)
    return [(common + spread * rng.standard_normal(size)).astype(np.float32) for _ in range(workers)]


def unpacked(partitions, bits):
    return [reference.unpack(partition.codes, bits, partition.padded) for partition in partitions]


@given(config=st.sampled_from(UNIFORM), n=st.integers(1, 8), size=st.integers(1, 3000), seed=st.integers(0, 99))
@SETTINGS
def test_definition_1_codes_add_without_a_table(workers_of, config, n, size, seed):
    """Uniform THC: decompressing the sum of the codes gives the average of what each worker sent, exactly."""
    workers = workers_of(config, n)
    partitions = workers.encode(gradients(n, size, seed))
    codes = np.array(unpacked(partitions, config.bits), np.int64)
    aggregate = workers.aggregate(partitions)
    np.testing.assert_array_equal(aggregate, codes.sum(axis=0))
    check_average_is_exact(codes, aggregate, workers.compressors[0].table.values)


@given(config=st.sampled_from(THC), n=st.integers(1, 8), size=st.integers(1, 3000), seed=st.integers(0, 99))
@SETTINGS
def test_definition_2_table_values_add(workers_of, config, n, size, seed):
    """THC: decompressing the sum of the looked-up table values gives the average of what each worker sent, exactly."""
    workers = workers_of(config, n)
    partitions = workers.encode(gradients(n, size, seed))
    codes = np.array(unpacked(partitions, config.bits), np.int64)
    aggregate = workers.aggregate(partitions)
    check_average_is_exact(codes, aggregate, workers.compressors[0].table.values)


def check_average_is_exact(codes, aggregate, values):
    """mean_i(2 T[z_i] / g - 1) = 2 Y / (n g) - 1 in rational numbers, per coordinate (in units of the clamp)."""
    n, g = len(codes), values[-1]
    for column, total in zip(codes[:, :200].T.tolist(), aggregate[:200].tolist(), strict=True):
        mean = sum((Fraction(2 * values[code], g) - 1 for code in column), Fraction(0)) / n
        assert mean == Fraction(2 * total, n * g) - 1


@given(config=st.sampled_from(THC + UNIFORM), n=st.integers(1, 6), size=st.integers(1, 3000), seed=st.integers(0, 99))
@SETTINGS
def test_decoding_the_sum_is_averaging_the_decoded(workers_of, config, n, size, seed):
    workers = workers_of(config, n)
    partitions = workers.encode(gradients(n, size, seed))
    average = workers.decode(partitions[0], workers.aggregate(partitions), n)
    alone = [workers.decode(partition, workers.aggregate([partition]), 1) for partition in partitions]
    np.testing.assert_allclose(average, np.mean(alone, axis=0), atol=2e-5)


def test_all_workers_decode_the_same_bits(workers_of):
    workers = workers_of(ThcConfig(), 4)
    partitions = workers.encode(gradients(4, 5000, 1))
    aggregate = workers.aggregate(partitions)
    decoded = {workers.decode(partition, aggregate, 4, worker).tobytes() for worker, partition in enumerate(partitions)}
    assert len(decoded) == 1


def test_a_partial_aggregate_averages_who_contributed(workers_of):
    workers = workers_of(ThcConfig.paper(), 4)
    partitions = workers.encode(gradients(4, 5000, 1))
    average = workers.decode(partitions[0], workers.aggregate(partitions[:3]), 3)
    alone = [workers.decode(partition, workers.aggregate([partition]), 1) for partition in partitions[:3]]
    np.testing.assert_allclose(average, np.mean(alone, axis=0), atol=2e-5)
    assert not workers.decode(partitions[0], workers.aggregate(partitions), 0).any()


@pytest.mark.parametrize("config", [ThcConfig.paper(error_feedback=False), ThcConfig.uniform(2, error_feedback=False)])
def test_error_is_what_the_table_promises(workers_of, config):
    """One worker, full blocks: the normalised squared error is cost + clamp_cost of the table."""
    gradient = gradients(1, 1 << 18, 3)[0]
    workers = workers_of(config, 1)
    table = workers.compressors[0].table
    error = workers.average([gradient]) - gradient
    measured = float(np.dot(error, error) / np.dot(gradient, gradient))
    assert measured == pytest.approx(table.cost + table.clamp_cost, rel=0.02)


def test_quantization_is_unbiased(workers_of):
    """Without clamping (p tiny), the mean over many rounds tends to the gradient as 1 / sqrt(rounds)."""
    rounds, size = 400, 2048
    workers = workers_of(ThcConfig(granularity=15, p=1e-9, error_feedback=False), 1)
    gradient = gradients(1, size, 5)[0]
    mean = sum(workers.average([gradient], round=r).astype(np.float64) for r in range(rounds)) / rounds
    variance = workers.compressors[0].table.cost * np.dot(gradient, gradient) / size / rounds
    error = mean - gradient
    assert np.dot(error, error) / size < 1.3 * variance
    assert abs(error.mean()) < 5 * (variance / size) ** 0.5


def test_same_seed_same_codes_other_key_other_codes(workers_of):
    gradient = gradients(1, 5000, 1)
    codes = {
        (seed, round_): workers_of(ThcConfig(seed=seed), 1).encode(gradient, round=round_)[0].codes.tobytes()
        for seed in (1, 2)
        for round_ in (1, 2)
    }
    assert len(set(codes.values())) == 4
    assert workers_of(ThcConfig(seed=1), 1).encode(gradient, round=1)[0].codes.tobytes() == codes[1, 1]


def test_workers_round_differently(workers_of):
    gradient = gradients(1, 5000, 1)[0]
    first, second = workers_of(ThcConfig(), 2).encode([gradient, gradient])
    assert first.codes.tobytes() != second.codes.tobytes()
