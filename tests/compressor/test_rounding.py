"""Stratified rounding: unbiased for every worker and every group of workers, and the average errs less."""

import itertools

import numpy as np
import pytest
from server_oracle import ServerOracle

from byteps_thc import Compressor, ServerCodes
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.rounding import Rounding

WORKERS = [*range(1, 65), 255, 256, 1000, 1024]
TURN = 1 << 16


def phases(workers: int) -> list[int]:
    return [Rounding.of("stratified", worker, workers).phase for worker in range(workers)]


def apart(first: int, second: int) -> int:
    """Distance of two phases on the circle."""
    return min((first - second) % TURN, (second - first) % TURN)


def test_independent_workers_have_domains_of_their_own():
    assert [Rounding.of("independent", worker, 3) for worker in range(3)] == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("workers", WORKERS)
def test_stratified_workers_share_a_domain_and_cut_the_circle_evenly(workers):
    assert {Rounding.of("stratified", worker, workers).domain for worker in range(workers)} == {1}
    assert sorted(phases(workers)) == [position * TURN // workers for position in range(workers)]


@pytest.mark.parametrize("workers", WORKERS)
def test_neighbouring_ranks_are_far_apart_in_phase(workers):
    """In every aligned group of 2^k ranks, as on a host, no two are closer than half of an even spread's distance."""
    for size in (2, 4, 8):
        for first in range(0, workers - size + 1, size):
            group = phases(workers)[first : first + size]
            assert min(apart(*pair) for pair in itertools.combinations(group, 2)) >= TURN / size / 2, (size, group)


@pytest.mark.parametrize("contributing", [(0,), (3,), (0, 1), (1, 2, 4), (0, 1, 2, 3, 4)])
def test_every_part_of_the_workers_is_unbiased(contributing):
    """For any contributors the mean over many rounds tends to the mean of the gradients as 1 / sqrt(rounds)."""
    rounds, size = 200, 2048
    workers = ServerOracle(ServerCodes(granularity=15, p=1e-9, error_feedback=False), 5)
    random = np.random.default_rng(2)
    gradients = [random.standard_normal(size).astype(np.float32) for _ in range(5)]
    wanted = np.mean([gradients[worker] for worker in contributing], axis=0, dtype=np.float64)
    total = np.zeros(size)
    for round_ in range(rounds):
        partitions = workers.encode(gradients, round=round_)
        sums = workers.aggregate([partitions[worker] for worker in contributing])
        total += workers.decode(partitions[0], sums, len(contributing))
    error = total / rounds - wanted
    energy = max(float(np.dot(gradient, gradient)) for gradient in gradients) / size
    largest_variance = workers.compressors[0].table.cost * energy / len(contributing) / rounds  # of independent errors
    assert np.dot(error, error) / size < 1.3 * largest_variance
    assert abs(error.mean()) < 5 * (largest_variance / size) ** 0.5


@pytest.mark.parametrize("workers", [2, 4, 8, 17])
def test_the_average_of_equal_gradients_errs_least(workers):
    """1 / n as much: codes then are a stratified sample of one number. Independent ones: test_many_workers.py."""
    gradient = np.random.default_rng(workers).standard_normal(1 << 17).astype(np.float32)
    errors = {}
    for rounding in ("stratified", "independent"):
        config = ServerCodes(granularity=15, p=1e-4, error_feedback=False, rounding=rounding)
        errors[rounding] = np.square(ServerOracle(config, workers).average([gradient] * workers) - gradient).sum()
    assert errors["stratified"] / errors["independent"] == pytest.approx(1 / workers, rel=0.05)


def test_defaults_and_the_hash_of_shared_settings():
    assert ServerCodes().rounding == ServerCodes.uniform().rounding == "stratified"
    assert ServerCodes.paper().rounding == "independent"
    papers_table = ServerCodes(granularity=30, p=1 / 32)
    assert papers_table.resolve(4).table == ServerCodes.paper().resolve(4).table
    assert papers_table.resolve(4).shared_hash != ServerCodes.paper().resolve(4).shared_hash
    assert Compressor(ServerCodes(), workers=4, worker=1).rounding == (1, TURN // 2)
    assert Compressor(ServerCodes.paper(), workers=4, worker=1).rounding == (2, 0)
    with pytest.raises(ConfigurationError, match="rounding"):
        ServerCodes(rounding="nearest")
