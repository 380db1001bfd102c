"""Where workers agree the clamp moves out; sums are right whatever they think of each other."""

import numpy as np
import pytest
import reference

from byteps_thc import ThcConfig
from byteps_thc.adaptive_clamp import ROUNDS_PER_LOOK, AdaptiveClamp
from byteps_thc.arrays import everybody

PINNED = ThcConfig(error_feedback=True, rotation_block=4096)
ADAPTIVE = PINNED.model_copy(update={"adaptive_clamp": True})


def normal(workers: int, correlation: float, step: int, size: int = 1 << 14) -> list[np.ndarray]:
    """Gradients with that correlation between workers."""
    random = np.random.default_rng([workers, step])
    common = random.standard_normal(size) * correlation**0.5
    own = random.standard_normal((workers, size)) * (1 - correlation) ** 0.5
    return list((common + own).astype(np.float32))


def average(together, gradients: list[np.ndarray], step: int) -> np.ndarray:
    """What all workers decode, each of which looks at it."""
    partitions = together.encode(gradients, round=step)
    aggregate = together.aggregate(partitions)
    received = [
        together.decode(partition, aggregate, len(gradients), worker) for worker, partition in enumerate(partitions)
    ]
    assert all(np.array_equal(other, received[0]) for other in received)
    return received[0]


def steady_error(together, workers: int, correlation: float) -> float:
    """NMSE with residuals that have their size."""
    error = energy = 0.0
    for step in range(20):
        gradients = normal(workers, correlation, step)
        exact = np.mean(gradients, axis=0, dtype=np.float64)
        found = average(together, gradients, step)
        if step >= 8:
            error += np.square(found - exact).sum()
            energy += np.square(exact).sum()
    return error / energy


@pytest.mark.parametrize(
    ("workers", "correlation", "most"), [(17, 0.7, 2.7e-3), (17, 1.0, 2.5e-3), (8, 1.0, 4.2e-3), (4, 1.0, 8e-3)]
)
def test_averages_err_less_where_workers_agree(workers_of, workers, correlation, most):
    """3.97, 6.60, 7.77 and 10.3 x 1e-3 with p as the table has it."""
    assert steady_error(workers_of(ADAPTIVE, workers), workers, correlation) < most


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 2, 8, 17])
def test_where_they_do_not_agree_nothing_changes(workers_of, workers, bits):
    pinned, adaptive = (workers_of(of.model_copy(update={"bits": bits}), workers) for of in (PINNED, ADAPTIVE))
    for step in range(4):
        gradients = normal(workers, 0.0, step, 5000)
        np.testing.assert_array_equal(average(adaptive, gradients, step), average(pinned, gradients, step))


def test_workers_that_think_otherwise_have_right_sums(workers_of):
    """One has forgotten everything, as after a restart; one has never seen an average. The residuals' mean is what the
    averages lack."""
    together = workers_of(ADAPTIVE, 8)
    sent, total = 0.0, 0.0
    for step in range(12):
        gradients = normal(8, 0.95, step, 5000)
        partitions = together.encode(gradients, round=step)
        aggregate = together.aggregate(partitions)
        sent = sent + together.decode(partitions[0], aggregate, 8).astype(np.float64)
        total = total + np.mean(gradients, axis=0, dtype=np.float64)
        for worker in range(1, 7):
            together.decode(partitions[worker], aggregate, 8, worker)
        if step == 5:
            partitions[2].clamp = AdaptiveClamp(
                together.compressors[2].resolved.clamp_steps,
                blocks=len(partitions[2].norms),
                coordinates=5000,
                rotation_block=4096,
            )
    assert (partitions[0].norms > partitions[0].measured).any()
    np.testing.assert_array_equal(partitions[7].norms, partitions[7].measured)
    residual = np.mean([compressor.residuals["w"] for compressor in together.compressors], axis=0)
    assert np.abs(sent + residual - total).max() < 2e-4


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.7, 1.0])
def test_norms_are_the_reference_s(workers_of, correlation):
    """Workers of unlike norms choose each for itself, when it is time; tail blocks, and a step that is lost."""
    together = workers_of(ADAPTIVE, 17)
    steps = together.compressors[0].resolved.clamp_steps
    factors = np.array([1, *steps.factors], np.float32)
    assert len(factors) == 4
    halvings, seen = [0] * 17, set()
    for step in range(2 * ROUNDS_PER_LOOK + 2):
        gradients = [x * np.float32(1 + 0.002 * i) for i, x in enumerate(normal(17, correlation, step, 4096 + 3000))]
        if step == 1:
            gradients[3][100] = np.inf
        partitions = together.encode(gradients, round=step)
        for partition, count in zip(partitions, halvings, strict=True):
            np.testing.assert_array_equal(partition.norms, partition.measured * factors[count])
        aggregate = together.aggregate(partitions)
        for worker, partition in enumerate(partitions):
            found = together.decode(partition, aggregate, 17, worker)
            if step % ROUNDS_PER_LOOK == 0:
                energy = float(np.square(partition.measured, dtype=np.float64).sum())
                halvings[worker] = reference.clamp_halvings(
                    found, energy, partition.clamped, halvings[worker], steps.p, steps.energies, 4096
                )
        seen.update(halvings)
    assert (max(seen) > 0) == (correlation >= 0.3)
    assert (max(seen) == 3) == (correlation == 1)


def test_unlike_norms_are_a_wider_clamp_already(workers_of):
    """All have the same direction, but one is 1.35 times as large: p = 1/64 for it is 1/900 for the others."""
    together = workers_of(ADAPTIVE, 8)
    for step in range(ROUNDS_PER_LOOK + 2):
        alike = normal(8, 1.0, step)
        alike[0] = alike[0] * np.float32(1.35)
        average(together, alike, step)
    partitions = [compressor.partitions["w"] for compressor in together.compressors]
    assert partitions[1].clamped * 8 < partitions[0].clamped
    for partition in partitions[1:]:
        np.testing.assert_array_equal(partition.norms, partition.measured)


def test_lost_averages_bring_the_clamp_back(workers_of):
    """A step that is not finite, and one that no packet of has come: the table's clamp, not a warning."""
    together = workers_of(ADAPTIVE, 8)
    lost = {ROUNDS_PER_LOOK: np.nan, 2 * ROUNDS_PER_LOOK: 0.0}
    for step in range(2 * ROUNDS_PER_LOOK + 2):
        gradients = normal(8, 1.0, step, 5000)
        if np.isnan(lost.get(step, 0.0)):
            gradients[2][:] = np.nan
        partitions = together.encode(gradients, round=step)
        aggregate = together.aggregate(partitions)
        widened = [(partition.norms > partition.measured).all() for partition in partitions]
        if step not in lost:
            assert all(widened) == (0 < step <= ROUNDS_PER_LOOK), step
        out = np.zeros(5000, np.float32)
        contributions = everybody(0 if lost.get(step) == 0 else 8)
        for compressor, partition in zip(together.compressors, partitions, strict=True):
            compressor.decode(partition, aggregate, contributions, out)
            assert step not in lost or not np.isfinite(out).all() or not out.any()


def test_it_is_nothing_that_workers_have_to_agree_on():
    pinned, adaptive = (config.resolve(8) for config in (PINNED, ADAPTIVE))
    assert pinned.shared_hash == adaptive.shared_hash
    assert pinned.settings == adaptive.settings
    assert not pinned.clamp_steps
    assert adaptive.clamp_steps
    assert not ADAPTIVE.resolve(1).clamp_steps
    assert not ThcConfig(error_feedback=False, adaptive_clamp=True).resolve(8).clamp_steps
