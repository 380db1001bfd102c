"""Sums that their owner requantizes, workers and owner in one process: what is chosen, and the error of the average."""

import math

import numpy as np
import pytest
import reference
from gradients import received_from_owners

from byteps_thc import LookupTable, ThcConfig, _core
from byteps_thc.arrays import value_dtype
from byteps_thc.compressor import Compressor, received_by_all
from byteps_thc.config import ResolvedConfig
from byteps_thc.errors import ConfigurationError, InputError
from byteps_thc.tables.selection import DOWN_BITS, bit_pairs, down_table
from byteps_thc.transport.shards import ShardLayout

COORDINATES = (1 << 17) + 100
#: NMSE of the first step, normal gradients
TARGETS = [(4, 11, 5.2e-3), (4, 12, 2.7e-3), (8, 12, 2.7e-3), (17, 12, 2.7e-3)]


def resolved_for(workers: int, **settings: object) -> ResolvedConfig:
    return ThcConfig(**settings).resolve(workers, packed_sums=True)


class Ranks:
    """Compressors of all ranks, and a partition of each."""

    def __init__(self, resolved: ResolvedConfig, coordinates: int) -> None:
        workers = resolved.workers
        self.resolved = resolved
        self.compressors = [Compressor(resolved, workers=workers, worker=rank, threads=1) for rank in range(workers)]
        self.partitions = [compressor.partition("w", coordinates) for compressor in self.compressors]

    def exact_sums(self, gradients: list[np.ndarray], round: int) -> np.ndarray:
        tasks = list(zip(self.compressors, self.partitions, gradients, strict=True))
        maxima = reference.max_norms([rank.measure(part, own, round=round).copy() for rank, part, own in tasks])
        sums = np.zeros(self.partitions[0].padded, value_dtype(self.resolved.value_bits))
        for rank, partition, _ in tasks:
            codes = rank.encode(partition, maxima)
            _core.lookup_sum(codes, self.resolved.table.array, sums, bits=self.resolved.table.bits, add=True)
        return sums

    def average(self, gradients: list[np.ndarray], round: int) -> np.ndarray:
        received = received_by_all(self.compressors[0], self.partitions[0], self.exact_sums(gradients, round))
        return self.decoded(*received)

    def average_by_owners(self, gradients: list[np.ndarray], round: int) -> np.ndarray:
        """The same bits; each rank requantizes its shard."""
        sums = self.exact_sums(gradients, round)
        shard_codes = ShardLayout.of(self.resolved, sums.size).shard_codes
        return self.decoded(*received_from_owners(self.compressors, self.partitions, sums, 0, shard_codes))

    def decoded(self, values: np.ndarray, scales: np.ndarray) -> np.ndarray:
        average = np.zeros(self.partitions[0].coordinates, np.float32)
        self.compressors[0].decode(self.partitions[0], values, scales, average)
        return average

    @property
    def residuals(self) -> np.ndarray:
        """Of all ranks, float64[ranks, coordinates]."""
        return np.array([partition.residual for partition in self.partitions], np.float64)


def normal(workers: int, coordinates: int, step: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng([workers, step])
    return [random.standard_normal(coordinates, np.float32) for _ in range(workers)]


@pytest.mark.parametrize(("workers", "total_bits", "target"), TARGETS)
def test_error_of_normal_gradients(workers, total_bits, target):
    gradients = normal(workers, COORDINATES)
    resolved = resolved_for(workers, total_bits=total_bits)
    average = Ranks(resolved, COORDINATES).average(gradients, 0)
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    nmse = np.square(average - exact).sum() / np.square(exact).sum()
    assert nmse <= target
    # What the pair was chosen by, of a first step, when there is no residual yet.
    table = resolved.table
    assert nmse == pytest.approx(table.average_cost(workers) + table.clamp_cost + resolved.down.cost, rel=0.03)


@pytest.mark.parametrize("bits", DOWN_BITS)
@pytest.mark.parametrize("workers", [4, 8])  # 8- and 16-bit sums
def test_requantizing_is_unbiased(bits, workers):
    """10^4 repetitions with the same sums: the mean of every coordinate is within 5 standard errors of what it stands
    for, and so is the mean of all of them.
    """
    granularity, table, repetitions = 51, down_table(bits), 10_000
    most, count = workers * granularity, 256 + 64
    sums = np.random.default_rng(7).integers(0, most + 1, count).astype(value_dtype(8 if workers == 4 else 16))
    sums[256:] = np.arange(64)  # far from the middle
    codes, scales = np.zeros(_core.code_bytes(count, bits), np.uint8), np.zeros(2, np.uint16)
    values, total, squares = np.zeros(count, np.uint8), np.zeros(count), np.zeros(count)
    for round in range(repetitions):
        _core.requantize(
            sums, codes, scales, first=512, workers=workers, granularity=granularity, values=table.array, bits=bits,
            seed=3, tensor=1, round=round,
        )  # fmt: skip
        _core.lookup_sum(codes, table.array, values, bits=bits, add=False)
        total += values
        squares += values.astype(np.float64) ** 2
    limit = np.repeat((scales.astype(np.uint32) << 16).view(np.float32), [256, 64]).astype(np.float64)
    position = ((2.0 * sums - most) / limit + 1) * table.granularity / 2
    error = total / repetitions - position
    deviation = np.sqrt(np.maximum(squares / repetitions - (total / repetitions) ** 2, 0) / repetitions)
    # 16 random bits round with probabilities that are off by up to 2^-17 of a gap, and a coordinate that is so near to
    # a point that it is rounded to another one less than once in all has no deviation.
    slack = np.diff(table.values).max() * (2.0**-17 + 5 / repetitions)
    assert (np.abs(error) <= 5 * deviation + slack).all()
    assert abs(error.mean()) <= 5 * np.sqrt(np.square(deviation).sum()) / count + 2.0**-17 * np.diff(table.values).max()


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_shards_make_the_same_of_the_sums_as_one_owner(workers):
    resolved = resolved_for(workers, bits=5, down_bits=6, rotation_block=1024)
    ranks = Ranks(resolved, 5000)
    sums = ranks.exact_sums(normal(workers, 5000), 3)
    layout = ShardLayout.of(resolved, sums.size)
    assert layout.shard_codes % 256 == 0
    assert layout.sum_bytes % 16 == 0
    together, scales = received_by_all(ranks.compressors[0], ranks.partitions[0], sums)
    for owner, (compressor, partition) in enumerate(zip(ranks.compressors, ranks.partitions, strict=True)):
        first = owner * layout.shard_codes
        own = sums[first : first + layout.shard_codes]
        groups = -(-own.size // 256)
        codes, own_scales = np.zeros(_core.code_bytes(own.size, 6), np.uint8), np.zeros(groups, np.uint16)
        compressor.requantize(partition, own, codes, own_scales, first=first)
        values = np.zeros(own.size, np.uint8)
        _core.lookup_sum(codes, down_table(6).array, values, bits=6, add=False)
        assert values.tobytes() == together[first : first + own.size].tobytes()
        assert own_scales.tobytes() == scales[first // 256 : first // 256 + groups].tobytes()


@pytest.mark.parametrize(
    ("workers", "coordinates", "settings"),
    [
        (2, 5000, {}),
        (3, 70_001, {"rotation_block": 8192}),  # owners share blocks
        (4, 3 * 1024, {"bits": 2, "down_bits": 4}),
        (5, 1000, {"rotation_block": 64, "down_bits": 8}),
        (7, 300, {"bits": 4}),  # a shard is padding
        (8, 20_000, {"rotation_block": 16384, "rounding": "independent"}),
    ],
)
def test_what_is_not_in_the_average_is_in_the_residuals(workers, coordinates, settings):
    """Of both roundings: new residuals add up to gradients + old residuals - workers * average, step by step."""
    settings = {"bits": 5, "down_bits": 6, "rotation_block": 1024, "error_feedback": True} | settings
    ranks = Ranks(resolved_for(workers, **settings), coordinates)
    for step in range(4):
        gradients = [(1 + rank) * gradient for rank, gradient in enumerate(normal(workers, coordinates))]
        expected = ranks.residuals.sum(0) + np.sum(gradients, axis=0, dtype=np.float64)
        expected -= workers * ranks.average_by_owners(gradients, step).astype(np.float64)
        largest = max(np.abs(gradients).max(), np.abs(ranks.residuals).max())
        np.testing.assert_allclose(ranks.residuals.sum(0), expected, rtol=0, atol=4e-6 * workers**2 * largest)


def test_a_gradient_that_is_not_finite_leaves_all_residuals_as_they_were():
    ranks = Ranks(resolved_for(3, bits=5, down_bits=6, rotation_block=1024, error_feedback=True), 5000)
    gradients = normal(3, 5000)
    ranks.average_by_owners(gradients, 0)
    before = ranks.residuals
    gradients[2][4000] = math.nan
    ranks.average_by_owners(gradients, 1)
    assert before.any(1).all()
    assert ranks.residuals.tobytes() == before.tobytes()


@pytest.mark.parametrize(("workers", "gain"), [(2, 1.15), (4, 1.08)])
def test_owners_subtract_what_is_known_of_the_rounding(workers, gain):
    """Once, from exact sums: the first average errs less, and so do later ones."""
    errors = {}
    for subtract in (True, False):
        resolved = resolved_for(workers, bits=5, down_bits=6, error_feedback=True, subtract_rounding=subtract)
        ranks = Ranks(resolved, 1 << 17)
        errors[subtract] = []
        for step in range(6):
            gradients = normal(workers, 1 << 17, step)
            error = ranks.average_by_owners(gradients, step) - np.mean(gradients, axis=0, dtype=np.float64)
            errors[subtract].append(np.square(error).sum())
    ratio = np.array(errors[False]) / errors[True]
    assert ratio[0] > gain
    assert ratio[3:].mean() > gain


@pytest.mark.parametrize("workers", [2, 3])
def test_what_is_subtracted_is_in_no_residual(workers):
    """All that was sent and the residuals' mean are the gradients' mean, as with exact sums."""
    ranks = Ranks(
        resolved_for(workers, bits=4, down_bits=6, error_feedback=True, subtract_rounding=True), coordinates=5000
    )
    sent = total = np.zeros(5000)
    for step in range(20):
        gradients = normal(workers, 5000, step)
        sent = sent + ranks.average_by_owners(gradients, step)
        total = total + np.mean(gradients, axis=0, dtype=np.float64)
    assert np.abs(sent + ranks.residuals.mean(0) - total).max() < 2e-4


def test_averages_of_what_is_left_are_unbiased():
    """As test_subtract_rounding.py has it of exact sums: gradients that are far from normal, and are not clamped."""
    rounds, size, workers, random = 10_000, 256, 2, np.random.default_rng(3)
    settings = {"rotation_block": 64, "granularity": 15, "p": 1e-9, "error_feedback": False}
    ranks = Ranks(resolved_for(workers, bits=4, down_bits=6, subtract_rounding=True, **settings), size)
    gradients = [
        (random.standard_normal(size) * (random.random(size) < 0.05) * 9 + 1).astype(np.float32) for _ in range(workers)
    ]
    averages = np.stack([ranks.average_by_owners(gradients, round_) for round_ in range(rounds)]).astype(np.float64)
    error = averages.mean(axis=0) - np.mean(gradients, axis=0, dtype=np.float64)
    statistic = float((np.square(error) / (averages.var(axis=0) / rounds)).sum())
    assert abs(statistic - size) < 5 * (2 * size) ** 0.5


@pytest.mark.parametrize("workers", [2, 4])
def test_what_requantizing_loses_comes_back(workers):
    """The error of what all steps have sent together does not grow: it is what the residuals have."""
    steps, coordinates = 32, 1 << 14
    sums = {}
    for error_feedback in (True, False):
        ranks = Ranks(resolved_for(workers, bits=5, down_bits=4, error_feedback=error_feedback), coordinates)
        gradients, sent = normal(workers, coordinates), np.zeros(coordinates)
        for step in range(steps):
            sent += ranks.average_by_owners(gradients, step)
        sums[error_feedback] = np.square(sent / steps - np.mean(gradients, axis=0, dtype=np.float64)).sum()
    assert sums[True] < sums[False] * 4 / steps


@pytest.mark.parametrize("workers", [2, 4, 17, 64, 1024])
@pytest.mark.parametrize("error_feedback", [True, False])
def test_total_bits_takes_the_pair_of_least_error(workers, error_feedback):
    for total in range(8, 17):
        chosen = resolved_for(workers, total_bits=total, error_feedback=error_feedback)
        assert chosen.down is not None
        assert (chosen.config.bits, chosen.config.down_bits) == (chosen.table.bits, chosen.down.bits)
        assert chosen.table.bits + chosen.sum_bits == total
        for bits, down_bits in bit_pairs(total):
            other = resolved_for(workers, bits=bits, down_bits=down_bits, error_feedback=error_feedback)
            assert (other.table.bits, other.sum_bits) == (bits, down_bits)
            assert chosen.expected_error() <= other.expected_error()
        assert chosen.value_bits == (8 if chosen.table.granularity * workers < 256 else 16)


def test_pairs():
    pair = {total: resolved_for(4, total_bits=total) for total in (11, 12)}
    assert [(resolved.table.bits, resolved.sum_bits) for resolved in pair.values()] == [(5, 6), (6, 6)]
    exact = resolved_for(4, down_bits=None)
    assert (exact.table.bits, exact.sum_bits) == (4, 7)
    assert pair[11].expected_error() < exact.expected_error() / 2.5
    beside = [resolved_for(4, down_bits=down_bits) for down_bits in (4, 6, 8)]
    assert [(resolved.table.bits, resolved.sum_bits) for resolved in beside] == [(4, 4), (5, 6), (7, 8)]


@pytest.mark.parametrize("workers", [2, 4, 8, 17, 32, 1024])
@pytest.mark.parametrize("error_feedback", [True, False])
def test_the_wider_codes_go_down_if_any(workers, error_feedback):
    """The owner's error is not averaged."""
    for total, pair in {11: (5, 6), 12: (6, 6), 13: (6, 7)}.items():
        resolved = resolved_for(workers, total_bits=total, error_feedback=error_feedback)
        assert (resolved.table.bits, resolved.sum_bits) == pair


def test_a_pair_that_cannot_be_leaves_the_others():
    """6-bit codes of 100 ranks do not fit 8-bit sums: 4 bits do."""
    resolved = resolved_for(100, total_bits=12, value_bits=8)
    assert (resolved.table.bits, resolved.sum_bits) == (4, 8)
    with pytest.raises(ConfigurationError):
        resolved_for(300, total_bits=12, value_bits=8)


def test_only_ranks_requantize_sums():
    for workers in (1, 4, 64):
        assert ThcConfig().resolve(workers).down is None
        asked = ThcConfig(total_bits=11).resolve(workers, packed_sums=True)
        default = ThcConfig().resolve(workers, packed_sums=True)
        assert (default.table, default.down, default.value_bits) == (asked.table, asked.down, asked.value_bits)
        for packed_sums in (False, True):
            assert ThcConfig(down_bits=None).resolve(workers, packed_sums=packed_sums).down is None
        # Servers and switches only add, and a reduce-scatter has no hop down.
        for settings in ({"down_bits": 6}, {"total_bits": 11}):
            assert ThcConfig(**settings).resolve(workers) == ResolvedConfig(
                ThcConfig(**settings),
                workers,
                ThcConfig().resolve(workers).table,
                ThcConfig().resolve(workers).value_bits,
            )


def test_a_granularity_that_is_given_is_kept():
    resolved = resolved_for(8, granularity=30, p=1 / 32, down_bits=5)
    assert (resolved.table, resolved.value_bits) == (LookupTable.paper(), 8)
    assert resolved_for(9, granularity=30, p=1 / 32, down_bits=5).value_bits == 16
    with pytest.raises(ConfigurationError, match="does not fit 8-bit aggregates"):
        resolved_for(9, granularity=30, p=1 / 32, value_bits=8, down_bits=5)
    assert resolved_for(4, down_bits=8, bits=7).sum_bits == 8


def test_tables_cost_what_requantizing_errs():
    """The model that pairs are chosen by: the largest of 256 normal coordinates is at the end of the grid."""
    x = np.random.default_rng(0).standard_normal((400, 256))
    scale = np.abs(x).max(1, keepdims=True)
    for bits in DOWN_BITS:
        table = down_table(bits)
        points = 2 * np.array(table.values) / table.granularity - 1
        below = np.minimum(np.searchsorted(points, x / scale, side="right"), len(points) - 1) - 1
        variance = (x / scale - points[below]) * (points[below + 1] - x / scale) * scale**2
        assert variance.mean() / np.square(x).mean() == pytest.approx(table.cost, rel=0.02)


def test_not_finite_norms_spoil_their_block_alone():
    ranks = Ranks(resolved_for(2, bits=5, down_bits=6, rotation_block=1024), 4096)
    gradients = normal(2, 4096)
    gradients[1][2000] = math.inf
    average = ranks.average(gradients, 0)
    assert np.isnan(average[1024:2048]).all()
    assert np.isfinite(np.delete(average, slice(1024, 2048))).all()


def test_what_is_asked_of_other_settings_is_refused():
    exact, down = (Ranks(resolved_for(2, **settings), 256) for settings in ({"down_bits": None}, {"down_bits": 6}))
    sums = exact.exact_sums(normal(2, 256), 0)
    codes, scales = np.zeros(192, np.uint8), np.zeros(1, np.uint16)
    with pytest.raises(ConfigurationError, match=r"do not requantize sums: use ThcConfig\(down_bits="):
        exact.compressors[0].requantize(exact.partitions[0], sums, codes, scales, first=0)
    down.exact_sums(normal(2, 256), 0)
    with pytest.raises(InputError, match="contributions must be uint16"):
        down.compressors[0].decode(
            down.partitions[0], np.zeros(256, np.uint8), np.ones(1, np.uint8), np.zeros(256, "f")
        )
