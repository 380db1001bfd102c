"""The algorithms that the ablation compares are the paper's: scalars in loops give the same."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import pytest
import reference
import torch
from averages.as_printed import uniform_thc
from averages.averaging import average_partition
from averages.servers_averager import ServersAverager
from averages.thc_parts import WORKERS, in_study

from byteps_thc import ThcConfig
from byteps_thc._scheme.rounding import Rounding
from byteps_thc._scheme.tables import LookupTable

Vector = Sequence[float]
COORDINATES = 64
TABLES = [LookupTable.solve(4, 30, 1 / 32), LookupTable.solve(2, 7, 1 / 8), LookupTable.uniform(2)]


def algorithm_1(gradients: Sequence[Vector], bits: int, chance: Sequence[Vector]) -> list[float]:
    """Scalars only, after the paper's lines."""
    m, big_m = min(map(min, gradients)), max(map(max, gradients))
    step = (big_m - m) / (2**bits - 1)
    average = []
    for j in range(len(gradients[0])):
        x = 0
        for own, numbers in zip(gradients, chance, strict=True):
            q = math.floor((own[j] - m) / step)
            x += q + (numbers[j] < (own[j] - (m + q * step)) / step)
        average.append(m + x / len(gradients) * step)
    return average


def hadamard(x: Vector) -> list[float]:
    """By its definition: the sign of an element is the parity of the bits that row and column share."""
    return [sum(-v if (i & j).bit_count() % 2 else v for j, v in enumerate(x)) for i in range(len(x))]


def non_uniform(
    gradients: Sequence[Vector], table: LookupTable, signs: Vector, chance: Sequence[Vector], *, rotation: bool = True
) -> list[float]:
    """Algorithm 2 in one block, with the rotation and clamp of section 5: scalars only."""
    d, norm = len(signs), max(math.sqrt(sum(v * v for v in own)) for own in gradients)
    t, g, total = table.threshold * norm, table.granularity, [0] * len(signs)
    for own, numbers in zip(gradients, chance, strict=True):
        turned = hadamard([s * v for s, v in zip(signs, own, strict=True)]) if rotation else [v * d**0.5 for v in own]
        for j, v in enumerate(turned):
            y = (min(max(v, -t), t) + t) * g / (2 * t)
            z = max(k for k in range(table.levels - 1) if table.values[k] <= y)
            low, high = table.values[z], table.values[z + 1]
            total[j] += high if numbers[j] < (y - low) / (high - low) else low
    average = [-t + y / len(gradients) * 2 * t / g for y in total]
    turned = [s * v / d for s, v in zip(signs, hadamard(average), strict=True)]
    return turned if rotation else [v / d**0.5 for v in average]


def tiny(workers: int) -> np.ndarray:
    """A few large coordinates, as rotation is for."""
    return np.random.default_rng(workers).standard_t(2, (workers, COORDINATES)).astype(np.float32)


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 3])
def test_algorithm_1_as_printed(bits: int, workers: int) -> None:
    gradients, chance = tiny(workers), np.random.default_rng(1).random((workers, COORDINATES), np.float32)
    expected = algorithm_1(gradients.tolist(), bits, chance.tolist())
    got = uniform_thc(torch.from_numpy(gradients), bits, torch.from_numpy(chance))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-5)
    error = np.abs(got.numpy() - gradients.mean(axis=0)).max()
    assert 0 < error < (gradients.max() - gradients.min()) / ((1 << bits) - 1)  # it does round


@pytest.mark.parametrize("table", TABLES, ids=["paper", "2 bits", "uniform"])
@pytest.mark.parametrize("mode", ["independent", "stratified"])
def test_algorithm_2_with_rotation_and_table(table: LookupTable, mode: str) -> None:
    workers, key = 3, reference.Key(seed=5, tensor=1, round=2)
    gradients, roundings = tiny(workers), [Rounding.of(mode, worker, workers) for worker in range(workers)]
    rotated, norms = zip(*(reference.rotate(own, None, COORDINATES, key) for own in gradients), strict=True)
    shape, maxima = (COORDINATES, COORDINATES, table.values, table.threshold), reference.max_norms(list(norms))
    codes = [
        reference.quantize(own, maxima, *shape, key, rounding).codes
        for own, rounding in zip(rotated, roundings, strict=True)
    ]
    sums = reference.lookup_sum(codes, table.values).astype(np.uint8)
    everybody = np.full(1, workers, np.uint8)
    decoding = (COORDINATES, 1024, COORDINATES, table.granularity, table.threshold, key)
    expected = reference.decode(sums, everybody, maxima, *decoding)

    signs = reference.signs(COORDINATES, key)
    bits = np.stack([reference.rounding_bits(COORDINATES, key, rounding) for rounding in roundings])
    chance = ((bits + 0.5) / (1 << 16)).tolist()
    got = non_uniform(gradients.tolist(), table, signs.tolist(), chance)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rotation", [True, False])
def test_the_study_does_the_same_with_and_without_rotation(rotation: bool) -> None:
    config = ThcConfig.paper()
    table = config.resolve(WORKERS).table
    gradients, signs = tiny(WORKERS), np.where(np.random.default_rng(2).random(COORDINATES) < 0.5, -1.0, 1.0)
    bits = np.random.default_rng(3).integers(1 << 16, size=(WORKERS, COORDINATES))
    got, lost = average_partition(
        torch.from_numpy(gradients),
        in_study(config, rotation=rotation),
        torch.from_numpy(signs).float(),
        torch.from_numpy(bits).int(),
    )
    chance = ((bits + 0.5) / (1 << 16)).tolist()
    expected = non_uniform(gradients.tolist(), table, signs.tolist(), chance, rotation=rotation)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got + lost.mean(dim=0), torch.from_numpy(gradients).mean(dim=0))


def test_without_a_clamp_nothing_is_clamped() -> None:
    gradients, scheme = tiny(WORKERS), in_study(ThcConfig.uniform(4), rotation=False, clamp=False)
    bits = torch.zeros(WORKERS, COORDINATES, dtype=torch.int32)
    _, lost = average_partition(torch.from_numpy(gradients), scheme, torch.ones(COORDINATES), bits)
    assert float(lost.abs().max()) <= 2 * np.abs(gradients).max() / 15 * (1 + 1e-5)
    _, clamped = average_partition(
        torch.from_numpy(gradients), in_study(ThcConfig.uniform(4), rotation=False), torch.ones(COORDINATES), bits
    )
    assert float(clamped.abs().max()) > float(lost.abs().max())


@pytest.mark.parametrize(
    "config",
    [
        ThcConfig(bits=4),
        ThcConfig(bits=2),
        ThcConfig(bits=2, rounding="independent", error_feedback=True),
        ThcConfig.uniform(4, error_feedback=True),
    ],
    ids=["4 bits", "2 bits", "independent, with feedback", "uniform, with feedback"],
)
def test_the_study_and_the_package_agree_on_what_both_can_do(config: ThcConfig) -> None:
    """Two steps; the same random signs and bits, so that only rounding of floats may turn a code."""
    coordinates = 3 * 8192 + 1000
    resolved, scheme = config.resolve(WORKERS), in_study(config)
    package, residual = ServersAverager(resolved, coordinates), torch.zeros(WORKERS, coordinates)
    padded = package.partitions[0].padded
    for step in range(2):
        random = torch.Generator().manual_seed(step)
        gradients = torch.randn(WORKERS, coordinates, generator=random).exp() * torch.linspace(-1, 1, coordinates)
        key = reference.Key(seed=config.seed, tensor=zlib.crc32(b"gradient"), round=step)
        roundings = [Rounding.of(config.rounding, worker, WORKERS) for worker in range(WORKERS)]
        bits = np.stack([reference.rounding_bits(padded, key, rounding) for rounding in roundings]).astype(np.int32)
        signs = torch.from_numpy(reference.signs(padded, key))
        expected = package.average(gradients)
        got, lost = average_partition(gradients + residual, scheme, signs, torch.from_numpy(bits))
        residual = lost if config.keeps_residuals else residual
        error = (expected - gradients.mean(dim=0)).square().sum()
        assert float((got - expected).square().sum()) < 1e-3 * float(error)
