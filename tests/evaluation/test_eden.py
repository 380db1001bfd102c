"""EDEN errs as its points do, exactly on average, and keeps tensors apart."""

from __future__ import annotations

import pytest
import torch
from averages.averagers import make
from averages.eden import Eden
from averages.lloyd_max import lloyd_max, quantization_error

TENSORS = [slice(0, 20_000), slice(20_000, 20_100)]


def gradients(ranks: int) -> torch.Tensor:
    return torch.randn(ranks, TENSORS[-1].stop, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_errors_are_those_of_the_points(bits: int) -> None:
    """One rank, whose way down costs little; the scale makes mse of mse / (1 - mse)."""
    own = gradients(1)
    average = make(Eden(bits, 8), 1, TENSORS).average(own)
    mse = quantization_error(lloyd_max(bits))
    assert float((average - own[0]).square().sum() / own.square().sum()) == pytest.approx(mse / (1 - mse), rel=0.05)


def test_rotations_make_it_unbiased() -> None:
    own, rounds = gradients(2), 100
    averager, exact = make(Eden(2, 2), 2, TENSORS), gradients(2).mean(dim=0)
    averages = [averager.average(own) for _ in range(rounds)]
    noise = torch.stack(averages).sub(exact).square().sum() / rounds**2
    assert float((torch.stack(averages).mean(dim=0) - exact).square().sum()) == pytest.approx(float(noise), rel=0.05)


def test_tensors_and_bits() -> None:
    own = torch.zeros(2, TENSORS[-1].stop)
    own[:, :20_000] = gradients(2)[:, :20_000]
    averager = make(Eden(3, 4, seed=5), 2, TENSORS)
    assert not averager.average(own)[20_000:].any()
    # Blocks of 8192, 8192, 2048, 1024, 512 and 64; and 128 of the second tensor.
    assert averager.bytes_both_ways == (20_032 + 128) * 7 / 8 + 8 * (6 + 1)
