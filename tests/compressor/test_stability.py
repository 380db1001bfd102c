"""Error feedback stays bounded at every width, for any number of workers, whatever gradients look like."""

import logging

import numpy as np
import pytest
import torch
from server_oracle import ServerOracle

from byteps_thc import Compressor, LookupTable, ServerCodes
from byteps_thc._engine.adding.feedback import GrowthGuard
from byteps_thc._engine.adding.residuals import energy_of
from byteps_thc._scheme.adding.server_codes import ResolvedCodes
from byteps_thc._scheme.adding.tables import CODE_BITS

SIZE, STEPS = 1024, 60


def gradients(kind: str, workers: int, random: np.random.Generator) -> list[np.ndarray]:
    """All of about unit variance; "correlated": 0.99 between workers and between steps."""
    if kind == "constant":
        return [np.random.default_rng(worker).standard_normal(SIZE).astype(np.float32) for worker in range(workers)]
    if kind == "random":
        return [random.standard_normal(SIZE, np.float32) for _ in range(workers)]
    common = np.random.default_rng(99).standard_normal(SIZE)
    return [(0.99**0.5 * common + 0.1 * random.standard_normal(SIZE)).astype(np.float32) for _ in range(workers)]


@pytest.mark.parametrize("kind", ["constant", "correlated", "random"])
@pytest.mark.parametrize("workers", [1, 2, 8, 64])
@pytest.mark.parametrize("bits", CODE_BITS)
def test_residuals_stay_bounded(bits, workers, kind):
    """The mean energy of the last steps' residuals is the earlier steps', and below the bound of the table's d.

    |r'|^2 = d |g + r|^2: with r and g aligned, the worst case, |r| <= sqrt(d) / (1 - sqrt(d)) |g|. Blocks differ in
    norm, and all are quantized with the largest: 1.5 allows for it.
    """
    random = np.random.default_rng(bits)
    simulated = ServerOracle(ServerCodes(bits=bits, value_bits=16, error_feedback=True), workers)
    table = simulated.compressors[0].table
    energies = []
    for step in range(STEPS):
        simulated.encode(gradients(kind, workers, random), round=step)
        residuals = [simulated.residual(worker, "w") for worker in range(workers)]
        energies.append(np.mean([np.dot(residual, residual) for residual in residuals]))
    contraction = (table.cost + table.clamp_cost) ** 0.5
    assert np.mean(energies[STEPS // 2 :]) ** 0.5 < 1.5 * contraction / (1 - contraction) * SIZE**0.5
    assert np.mean(energies[STEPS // 2 :]) < 1.5 * np.mean(energies[STEPS // 4 : STEPS // 2])


def look_after(config: ServerCodes | ResolvedCodes, steps: int, gradient: np.ndarray) -> None:
    """Return the guard's verdict on a residual after so many steps."""
    compressor = Compressor(config, workers=1, worker=0)
    partition = compressor.partition("layer1.weight", gradient.size)
    for step in range(steps):
        compressor.encode(partition, compressor.measure(partition, gradient, round=step))
    guard = GrowthGuard()
    for _ in range(2):
        guard.look(partition, torch.from_numpy(partition.residual))


def test_the_guard_reports_a_residual_that_grows(caplog):
    """1 bit with a high clamp, as it was the default once: resolve() refuses it, a ready-made table does not."""
    diverging = ResolvedCodes(ServerCodes(bits=1, error_feedback=True), 1, LookupTable.uniform(1, 1 / 16), 8)
    gradient = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    with caplog.at_level(logging.WARNING, logger="byteps_thc"):
        look_after(diverging, 20, gradient)
    assert len(caplog.records) == 1
    assert "'layer1.weight'" in caplog.text
    assert "error_feedback=False" in caplog.text


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("gradient", ["normal", "one coordinate", "zero", "huge"])
def test_the_guard_is_silent_about_healthy_residuals(caplog, bits, gradient):
    values = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    if gradient == "one coordinate":
        values[1:] = 0
    values *= {"zero": 0, "huge": 1e30}.get(gradient, 1)
    with caplog.at_level(logging.WARNING, logger="byteps_thc"):
        look_after(ServerCodes(bits=bits, error_feedback=True), 20, values)
    assert not caplog.records


@pytest.mark.parametrize("size", [1, 64, 4096])
@pytest.mark.parametrize("value", [1e30, 1e38])
def test_the_energy_of_large_gradients_is_no_overflow(size, value):
    """Statistics ask for it in every step; NumPy's warnings are errors here."""
    compressor = Compressor(ServerCodes(), workers=1, worker=0)
    partition = compressor.partition("layer1.weight", size)
    gradient = np.zeros(size, np.float32)
    gradient[-1] = value
    compressor.encode(partition, compressor.measure(partition, gradient, round=0))
    assert partition.energy == pytest.approx(float(np.float32(value)) ** 2, rel=1e-6)
    assert energy_of(torch.from_numpy(gradient)) == pytest.approx(float(np.float32(value)) ** 2, rel=1e-6)
