"""Alternatives to THC are faithful to their names: bits, bias, exact values, averages."""

from pathlib import Path

import numpy as np
import pytest
import torch
from averages.alternatives import COORDINATES, KINDS, TwoHops, alternatives, gradients
from averages.averagers import make
from averages.eden import Eden
from averages.lloyd_max import lloyd_max, quantization_error
from averages.power_sgd import PowerSgd
from averages.quantizers import E2M1, E4M3, Integers, Microscaling, MsEden, Nvfp4, Quantizer, Smoothed, round_to
from averages.ranks import RankCodes
from averages.schemes import nmse, packaged
from averages.servers_averager import ServersAverager

from byteps_thc import ServerCodes
from thc_lab.ranks import run_ranks

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
    MsEden(): 4.5,
    Smoothed(Integers(4, 128)): 4.125,
}


@pytest.mark.parametrize(("quantizer", "bits"), BITS.items())
def test_bits_and_bias(quantizer: Quantizer, bits: float) -> None:
    """The mean of R repetitions errs by an R-th of the variance, without bias."""
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
    assert errors[1] < errors[0] / 4  # 1 / 8 where all are equal


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


EDEN_TENSORS = [slice(0, 20_000), slice(20_000, 20_100)]
#: Mean squared errors of Lloyd-Max quantizers of a standard normal (Max, 1960; Jayant and Noll, 1984, table 4.8).
KNOWN_ERRORS = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497, 5: 0.002499}


def normal_gradients(ranks: int) -> torch.Tensor:
    return torch.randn(ranks, EDEN_TENSORS[-1].stop, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bits", KNOWN_ERRORS)
def test_points_are_optimal_and_symmetric(bits: int) -> None:
    table = lloyd_max(bits)
    assert quantization_error(table) == pytest.approx(KNOWN_ERRORS[bits], rel=3e-3)
    assert table.points.tolist() == (-table.points[::-1]).tolist()


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_errors_are_those_of_the_points(bits: int) -> None:
    """One rank, whose way down costs little; the scale makes mse of mse / (1 - mse)."""
    own = normal_gradients(1)
    average = make(Eden(bits, 8), 1, EDEN_TENSORS).average(own)
    mse = quantization_error(lloyd_max(bits))
    assert float((average - own[0]).square().sum() / own.square().sum()) == pytest.approx(mse / (1 - mse), rel=0.05)


def test_rotations_make_it_unbiased() -> None:
    own, rounds = normal_gradients(2), 100
    averager, exact = make(Eden(2, 2), 2, EDEN_TENSORS), normal_gradients(2).mean(dim=0)
    averages = [averager.average(own) for _ in range(rounds)]
    noise = torch.stack(averages).sub(exact).square().sum() / rounds**2
    assert float((torch.stack(averages).mean(dim=0) - exact).square().sum()) == pytest.approx(float(noise), rel=0.05)


def test_tensors_and_bits() -> None:
    own = torch.zeros(2, EDEN_TENSORS[-1].stop)
    own[:, :20_000] = normal_gradients(2)[:, :20_000]
    averager = make(Eden(3, 4, seed=5), 2, EDEN_TENSORS)
    assert not averager.average(own)[20_000:].any()
    # Blocks of 8192, 8192, 2048, 1024, 512 and 64; and 128 of the second tensor.
    assert averager.bytes_both_ways == (20_032 + 128) * 7 / 8 + 8 * (6 + 1)


RANKS, STEPS = 2, 5
#: The last two are not worth compressing with rank 4.
SHAPES = [[24, 32], [16, 3, 3, 3], [40], [5, 6]]
RANK_PROGRAM = Path(__file__).with_name("power_sgd_rank.py")


def test_averages_are_those_of_the_hook(tmp_path: Path) -> None:
    settings = {"shapes": SHAPES, "rank": 4, "steps": STEPS}
    hook = run_ranks(RANK_PROGRAM, RANKS, tmp_path, settings=settings)[0]
    shapes = [torch.Size(shape) for shape in SHAPES]
    averager = make(PowerSgd(rank=4, start=2), RANKS, [slice(0, 0)], shapes=shapes)
    for step in range(STEPS):
        workers = []
        for worker in range(RANKS):
            random = torch.Generator().manual_seed(100 * step + worker)
            workers.append(torch.cat([torch.randn(shape, generator=random).flatten() for shape in shapes]))
        torch.testing.assert_close(averager.average(torch.stack(workers)), hook[step], rtol=1e-4, atol=1e-5)


def test_bytes_are_those_of_both_factors_and_of_what_is_not_compressed() -> None:
    shapes = [torch.Size(shape) for shape in SHAPES]
    averager = make(PowerSgd(rank=4), RANKS, [slice(0, 0)], shapes=shapes)
    assert averager.bytes_both_ways == 2 * 4 * (4 * (24 + 32) + 4 * (16 + 27) + 40 + 5 * 6)


WORKERS, SIZE = 4, 5000


def test_with_feedback_nothing_is_lost() -> None:
    averager = ServersAverager(ServerCodes(bits=2, error_feedback=True).resolve(WORKERS), SIZE)
    gradients = torch.randn(3, WORKERS, SIZE, generator=torch.Generator().manual_seed(1))
    total = sum(averager.average(of_step) for of_step in gradients)
    residuals = [partition.residual for partition in averager.partitions if partition.residual is not None]
    assert len(residuals) == WORKERS
    kept = np.mean(residuals, axis=0)
    assert np.linalg.norm(kept) > 0.1 * np.linalg.norm(total)
    torch.testing.assert_close(total + torch.from_numpy(kept), gradients.mean(dim=1).sum(dim=0), rtol=0, atol=1e-4)


def test_averages_without_feedback_are_near() -> None:
    averager = ServersAverager(ServerCodes(error_feedback=False).resolve(WORKERS), SIZE)
    gradients = torch.randn(WORKERS, SIZE, generator=torch.Generator().manual_seed(1))
    exact = gradients.mean(dim=0)
    error = float((averager.average(gradients) - exact).square().sum() / exact.square().sum())
    assert error < 0.02
    assert averager.partitions[0].residual is None
