"""What THC is compared with is what it says: its bits, unbiased where it should be, exact where it can be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from averages.alternatives import COORDINATES, KINDS, TwoHops, alternatives, gradients
from averages.quantizers import (
    E2M1,
    E4M3,
    Integers,
    Microscaling,
    Nvfp4,
    Quantizer,
    Smoothed,
    round_to,
)
from averages.ranks import RankCodes
from averages.schemes import nmse, packaged

QSGD = Integers(4, 512, scale=np.float32)
BITS = {
    QSGD: 4 + 32 / 512,
    Integers(4, 512, "l2", np.float32): 4 + 32 / 512,
    Integers(4, 64): 4.25,
    Integers(6, 16): 7,
    Integers(6, 64, nearest=True): 6.25,
    Microscaling("e2m1"): 4.25,
    Microscaling("e2m1", nearest=False): 4.25,
    Microscaling("e4m3"): 8.25,
    Nvfp4(): 4.5,
    Nvfp4(nearest=True): 4.5,
    Smoothed(Integers(4, 128)): 4.125,
}


@pytest.mark.parametrize(("quantizer", "bits"), BITS.items())
def test_bits_and_bias(quantizer: Quantizer, bits: float) -> None:
    """The mean of R repetitions errs by an R-th of the variance, if there is no bias."""
    assert quantizer.bits == bits
    random = np.random.default_rng(1)
    x = gradients("lognormal, cosine .1", 1, random, 8192)[0]
    repetitions = 40
    results = [quantizer(x, random.random(x.size)) for _ in range(repetitions)]
    variance = np.mean([np.square(result - x).sum() for result in results])
    error = np.square(np.mean(results, axis=0) - x).sum()
    assert quantizer.unbiased == (error < 1.3 * variance / repetitions)
    if not quantizer.unbiased:
        assert error == pytest.approx(variance)  # deterministic


@pytest.mark.parametrize("quantizer", BITS)
def test_nothing_comes_of_nothing(quantizer: Quantizer) -> None:
    assert not quantizer(np.zeros(8192), np.full(8192, 0.5)).any()


@pytest.mark.parametrize("nearest", [True, False])
def test_what_can_be_said_is_said(nearest: bool) -> None:
    random = np.random.default_rng(2)
    levels = random.integers(-7, 8, (64, 64)).astype(float)
    levels[:, 0] = 7
    chance = random.random(levels.size)
    x = (levels * 2.0 ** random.integers(-8, 8, (64, 1))).reshape(-1)
    np.testing.assert_array_equal(Integers(4, 64, nearest=nearest)(x, chance), x)
    for element, elements in (("e2m1", E2M1), ("e4m3", E4M3)):
        groups = random.choice([-1.0, 1.0], (128, 32)) * random.choice(elements, (128, 32))
        groups[:, 0] = elements[-1]
        x = (groups * 2.0 ** random.integers(-8, 8, (128, 1))).reshape(-1)
        np.testing.assert_array_equal(Microscaling(element, nearest)(x, chance), x)
    groups = random.choice([-1.0, 1.0], (256, 16)) * random.choice(E2M1, (256, 16))
    groups[:, 0] = 6
    scales = random.choice(E4M3, (256, 1))
    scales[0] = 448
    np.testing.assert_array_equal(Nvfp4(nearest)((groups * scales).reshape(-1), chance), (groups * scales).reshape(-1))


def test_rounding_to_nearest_is_torch_s() -> None:
    middles = (E4M3[1:] + E4M3[:-1]) / 2  # ties
    x = np.concatenate([E4M3, middles, np.random.default_rng(3).normal(0, 30, 10_000)]).clip(-448, 448)
    expected = torch.from_numpy(x).to(torch.float8_e4m3fn).double().numpy()
    np.testing.assert_array_equal(round_to(E4M3, x), expected)
    np.testing.assert_array_equal(round_to(E2M1, np.array([0.25, 0.75, 2.5, 3.5, -5.0, 9.0])), [0, 1, 2, 4, -4, 6])


def test_correlated_rounding_errs_less_on_average() -> None:
    fine = Integers(16, 64)
    errors = []
    for correlated in (False, True):
        own = gradients("copies", 8, np.random.default_rng(5), 8192)
        average = TwoHops(Integers(4, 64), fine, correlated).average(own, np.random.default_rng(6))
        errors.append(np.square(average - own.mean(axis=0)).sum())
    assert errors[1] < errors[0] / 4  # 1 / 8 of it where all are equal


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_as_much_as_they_should(kind: str) -> None:
    x = gradients(kind, 4, np.random.default_rng(7))
    assert x.shape == (4, COORDINATES)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine = (unit @ unit.T)[np.triu_indices(4, 1)].mean()
    wanted = {"normal": 0.0, "copies": 1.0}.get(kind) if "cosine" not in kind else float(kind.split()[-1])
    assert cosine == pytest.approx(wanted, abs=0.1 if kind.startswith("lognormal") else 0.02)


@pytest.mark.parametrize("kind", ["normal", "normal, cosine .9", "copies"])
def test_12_bits_err_less_than_others(kind: str) -> None:
    own = gradients(kind, 4, np.random.default_rng(8))
    average, bits = packaged(RankCodes(6, 6), [slice(0, COORDINATES)])(own, np.random.default_rng(9))
    assert bits == 12 + 2 * 17 * 8 / 1024
    ours = nmse(average, own.mean(axis=0))
    others = ("QSGD 6 + 6, largest of 512", "MXFP4 + MXFP8", "NVFP4, random + MXFP8", "int6 + int6, groups of 64")
    for name in others:
        assert ours < nmse(alternatives()[name].average(own, np.random.default_rng(9)), own.mean(axis=0)), name
