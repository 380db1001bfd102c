import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_oracle import ServerOracle

from byteps_thc import ServerCodes

FEEDBACK = ServerCodes(error_feedback=True)
CONFIGS = [
    FEEDBACK,
    ServerCodes.paper(),
    ServerCodes.uniform(1, error_feedback=True),
    ServerCodes(rotation_block=64, error_feedback=True),
]


def normal(size, seed):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@given(config=st.sampled_from(CONFIGS), size=st.integers(1, 2000), rounds=st.integers(1, 6), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_sent_plus_residual_is_the_sum_of_the_gradients(config, size, rounds, seed):
    workers = ServerOracle(config, 1)
    gradients = [normal(size, [seed, r]) for r in range(rounds)]
    sent = sum(workers.average([gradient], round=r).astype(np.float64) for r, gradient in enumerate(gradients))
    total = np.sum(gradients, axis=0, dtype=np.float64)
    np.testing.assert_allclose(sent + workers.residual(0, "w"), total, atol=1e-4 * rounds)


def test_residual_of_each_name_is_its_own():
    workers = ServerOracle(FEEDBACK, 1)
    for name, size in (("a", 100), ("b", 300)):
        workers.encode([normal(size, size)], name=name)
    residuals = {name: workers.residual(0, name) for name in "ab"}
    assert {name: residual.size for name, residual in residuals.items()} == {"a": 100, "b": 300}
    assert all(residual.any() for residual in residuals.values())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38])
def test_non_finite_gradients_reach_everyone_and_leave_residuals_alone(bad):
    """Worker 1 overflows; worker 0 must see it too (GradScaler), and both resume cleanly."""
    workers = ServerOracle(ServerCodes(rotation_block=1024, error_feedback=True), 2)
    workers.encode([normal(4096, 0), normal(4096, 1)], round=0)
    before = [workers.residual(worker, "w") for worker in range(2)]
    broken = normal(4096, 2)
    broken[1500:1600] = bad
    average = workers.average([normal(4096, 3), broken], round=1)
    assert np.isnan(average[1024:2048]).all()
    assert np.isfinite(average[:1024]).all()
    assert np.isfinite(average[2048:]).all()
    for worker, residual in enumerate(before):
        assert not workers.partitions[worker]["w"].residual_kept
        np.testing.assert_array_equal(workers.residual(worker, "w"), residual)
    assert np.isfinite(workers.average([normal(4096, 4), normal(4096, 5)], round=2)).all()


def test_gradients_near_overflow_leave_residuals_alone():
    workers = ServerOracle(FEEDBACK, 1)
    workers.encode([normal(4096, 0)], round=0)
    before = workers.residual(0, "w")
    workers.encode([normal(4096, 1) * np.float32(1e36)], round=1)
    np.testing.assert_array_equal(workers.residual(0, "w"), before)


@pytest.mark.parametrize("config", [ServerCodes(), ServerCodes(bits=1)])
def test_no_error_feedback_keeps_nothing(config):
    partition = ServerOracle(config, 1).encode([normal(100, 1)])[0]
    assert partition.residual is None
    assert not partition.residual_kept


def test_what_a_partition_says_of_its_error():
    workers = ServerOracle(ServerCodes.paper(), 1)
    partition = workers.encode([normal(1 << 16, 1)])[0]
    table = workers.compressors[0].table
    assert partition.clamped / partition.coordinates == pytest.approx(1 / 32, rel=0.1)
    lost, energy = (float(np.dot(x, x)) for x in (partition.residual, partition.norms))
    assert lost / energy == pytest.approx(table.cost + table.clamp_cost, rel=0.1)
