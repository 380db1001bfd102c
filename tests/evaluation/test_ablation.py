"""The algorithms that the ablation compares: Algorithm 1 is the paper's, and the study agrees with the package."""

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

from byteps_thc import ServerCodes
from byteps_thc._scheme.rounding import Rounding

Vector = Sequence[float]
COORDINATES = 64


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


def test_the_study_without_rotation_is_that_of_a_rotated_gradient() -> None:
    """The package has no average without rotation; the rotation of the inputs is undone behind it."""
    config, signs = ServerCodes.paper(), reference.signs(COORDINATES, reference.Key(5, 1, 2))
    bits = torch.randint(1 << 16, (WORKERS, COORDINATES), generator=torch.Generator().manual_seed(3)).int()

    def turned(x: np.ndarray) -> np.ndarray:
        return reference.hadamard(x) / np.float32(COORDINATES**0.5)

    gradients = tiny(WORKERS)
    expected, _ = average_partition(torch.from_numpy(gradients), in_study(config), torch.from_numpy(signs), bits)
    rotated = torch.from_numpy(np.stack([turned(own * signs) for own in gradients]))
    got, lost = average_partition(rotated, in_study(config, rotation=False), torch.ones(COORDINATES), bits)
    np.testing.assert_allclose(turned(got.numpy()) * signs, expected.numpy(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got + lost.mean(dim=0), rotated.mean(dim=0))


def test_without_a_clamp_nothing_is_clamped() -> None:
    gradients, scheme = tiny(WORKERS), in_study(ServerCodes.uniform(4), rotation=False, clamp=False)
    bits = torch.zeros(WORKERS, COORDINATES, dtype=torch.int32)
    _, lost = average_partition(torch.from_numpy(gradients), scheme, torch.ones(COORDINATES), bits)
    assert float(lost.abs().max()) <= 2 * np.abs(gradients).max() / 15 * (1 + 1e-5)
    _, clamped = average_partition(
        torch.from_numpy(gradients), in_study(ServerCodes.uniform(4), rotation=False), torch.ones(COORDINATES), bits
    )
    assert float(clamped.abs().max()) > float(lost.abs().max())


@pytest.mark.parametrize(
    "config",
    [
        ServerCodes(bits=4),
        ServerCodes(bits=2),
        ServerCodes(bits=2, rounding="independent", error_feedback=True),
        ServerCodes.uniform(4, error_feedback=True),
    ],
    ids=["4 bits", "2 bits", "independent, with feedback", "uniform, with feedback"],
)
def test_the_study_and_the_package_agree_on_what_both_can_do(config: ServerCodes) -> None:
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
        residual = lost if config.error_feedback else residual
        error = (expected - gradients.mean(dim=0)).square().sum()
        assert float((got - expected).square().sum()) < 1e-3 * float(error)
