"""What stratified rounding is known to err by is subtracted: less error, no bias, only where all have contributed."""

import numpy as np
import pytest

from byteps_thc import ThcConfig
from byteps_thc.arrays import everybody
from byteps_thc.errors import ConfigurationError

PLAIN, SUBTRACT = ThcConfig(), ThcConfig(subtract_rounding=True)
FEEDBACK = ThcConfig(subtract_rounding=True, error_feedback=True)


def normal(workers: int, size: int, seed: int) -> list[np.ndarray]:
    return list(np.random.default_rng([workers, seed]).standard_normal((workers, size)).astype(np.float32))


def nmse(average: np.ndarray, gradients: list[np.ndarray]) -> float:
    wanted = np.mean(gradients, axis=0, dtype=np.float64)
    return float(np.square(average - wanted).sum() / np.square(wanted).sum())


@pytest.mark.parametrize(("workers", "gain"), [(1, 1.6), (2, 1.28), (4, 1.15), (8, 1.07)])
def test_the_first_average_errs_less(workers_of, workers, gain):
    """By table and p as chosen; the simulation said 1.31, 1.17 and 1.08 for 2, 4 and 8."""
    gradients = normal(workers, 1 << 18, 1)
    averages = [workers_of(config, workers).average(gradients) for config in (PLAIN, SUBTRACT)]
    plain, subtracted = (nmse(average, gradients) for average in averages)
    assert plain / subtracted > gain


@pytest.mark.parametrize(("workers", "most"), [(2, 21.8e-3), (4, 21.5e-3)])
def test_averages_with_feedback_err_less(workers_of, workers, most):
    """In the steady state, which 8 steps reach: 28 and 25 x 1e-3 without."""
    together = workers_of(FEEDBACK, workers)
    errors = []
    for step in range(20):
        gradients = normal(workers, 1 << 16, step)
        errors.append(nmse(together.average(gradients, round=step), gradients))
    assert np.mean(errors[8:]) < most


@pytest.mark.parametrize("workers", [2, 3, 17])
def test_residuals_are_what_averages_have_lost(workers_of, workers):
    """All that was sent and the residuals' mean are the gradients' mean: nothing is given back twice."""
    together = workers_of(FEEDBACK, workers)
    sent, total = 0.0, 0.0
    for step in range(20):
        gradients = normal(workers, 5000, step)
        sent = sent + together.average(gradients, round=step).astype(np.float64)
        total = total + np.mean(gradients, axis=0, dtype=np.float64)
    residual = np.mean([compressor.residuals["w"] for compressor in together.compressors], axis=0)
    assert np.abs(sent + residual - total).max() < 2e-4


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_ten_thousand_averages_are_unbiased(workers_of, workers):
    """Also of gradients that are far from normal when rotated: a few large coordinates in blocks of 64, not clamped.

    The squared mean error over its variance, as it is found, adds up to the number of coordinates, +- 5 sigma.
    """
    rounds, size = 10_000, 256
    config = ThcConfig(rotation_block=64, granularity=15, p=1e-9, error_feedback=False, subtract_rounding=True)
    random = np.random.default_rng(workers)
    gradients = [
        (random.standard_normal(size) * (random.random(size) < 0.05) * 9 + 1).astype(np.float32) for _ in range(workers)
    ]
    together = workers_of(config, workers)
    averages = np.stack([together.average(gradients, round=round_) for round_ in range(rounds)]).astype(np.float64)
    error = averages.mean(axis=0) - np.mean(gradients, axis=0, dtype=np.float64)
    statistic = float((np.square(error) / (averages.var(axis=0) / rounds)).sum())
    assert abs(statistic - size) < 5 * (2 * size) ** 0.5


def decoded(together, partitions, contributing: list[int], contributions: np.ndarray, chunk: int) -> np.ndarray:
    aggregate = together.aggregate([partitions[worker] for worker in contributing])
    out = np.zeros(partitions[0].coordinates, np.float32)
    together.compressors[0].decode(partitions[0], aggregate, contributions, out, codes_per_chunk=chunk)
    return out


def test_only_sums_of_all_workers_are_corrected(workers_of):
    """Chunk by chunk: a quorum's sums, and those that a packet is missing from, are what they are without."""
    size, chunk, block = 8192, 1024, 1024
    gradients = normal(3, size, 1)
    results = []
    for subtract in (False, True):
        together = workers_of(ThcConfig(rotation_block=block, subtract_rounding=subtract), 3)
        partitions = together.encode(gradients)
        quorum = decoded(together, partitions, [0, 2], everybody(2), size)
        counts = np.array([3, 2, 3, 3, 1, 0, 3, 2], np.uint8)
        mixed = decoded(together, partitions, [0, 1, 2], counts, chunk)
        results.append((partitions[0].codes.tobytes(), quorum, mixed))
    (codes, quorum, mixed), (same_codes, same_quorum, corrected) = results
    assert codes == same_codes
    assert quorum.tobytes() == same_quorum.tobytes()
    differ = (mixed != corrected).reshape(-1, chunk).any(axis=1)
    assert differ.tolist() == [True, False, True, True, False, False, True, False]


def test_a_quorum_is_unbiased_with_feedback_of_all(workers_of):
    """What is not taken back is noise of the residuals with mean zero: what was sent stays near what was asked for."""
    together = workers_of(FEEDBACK, 3)
    sent, total, steps = 0.0, 0.0, 60
    for step in range(steps):
        gradients = normal(3, 4096, step)
        partitions = together.encode(gradients, round=step)
        contributing = [worker for worker in range(3) if worker != step % 3 or step % 2]
        aggregate = together.aggregate([partitions[worker] for worker in contributing])
        sent = sent + together.decode(partitions[0], aggregate, len(contributing)).astype(np.float64)
        total = total + np.mean([gradients[worker] for worker in contributing], axis=0, dtype=np.float64)
    error = (sent - total) / steps
    assert abs(error.mean()) < 5 * error.std() / error.size**0.5
    assert np.square(error).mean() < 0.02


def test_settings():
    assert not PLAIN.subtract_rounding
    assert PLAIN.resolve(4).known_errors is None
    assert SUBTRACT.resolve(4).table == PLAIN.resolve(4).table
    assert SUBTRACT.resolve(4).shared_hash != PLAIN.resolve(4).shared_hash
    with pytest.raises(ConfigurationError, match="subtract_rounding needs stratified rounding"):
        ThcConfig(rounding="independent", subtract_rounding=True)


def test_all_workers_decode_the_same_bits(workers_of):
    together = workers_of(SUBTRACT, 3)
    partitions = together.encode(normal(3, 3000, 1))
    sums = together.aggregate(partitions)
    assert len({together.decode(partitions[worker], sums, 3, worker).tobytes() for worker in range(3)}) == 1
