"""Residuals of bfloat16: two bytes for each parameter, and what feedback gives back stays what it was."""

import numpy as np
import pytest
import torch
from server_oracle import ServerOracle

from byteps_thc import ThcConfig
from byteps_thc._scheme.arrays import residual_of_tensor, widened
from byteps_thc._scheme.errors import ConfigurationError, InputError

KINDS = ("float32", "bfloat16")
SIZE = 5000


def config(kind, **settings):
    return ThcConfig(error_feedback=True, residual_dtype=kind, **settings)


def normal(*seed):
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def relative(error, of):
    return float(np.sqrt(np.dot(error, error) / np.dot(of, of)))


def test_what_is_kept_is_the_float32_error_rounded_to_nearest_even():
    workers = [ServerOracle(config(kind), 2) for kind in KINDS]
    wide, half = (of_kind.encode([normal(0), normal(1)])[1].residual for of_kind in workers)
    assert half.dtype == np.uint16
    np.testing.assert_array_equal(half, residual_of_tensor(torch.from_numpy(wide).bfloat16()))
    assert relative(widened(half) - wide, wide) < 2**-9


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("scales", ["like", "unlike"])
def test_over_many_steps_averages_miss_no_more_than_with_float32(bits, scales):
    """The same gradients again and again, some of them 10^4 times smaller: what is too small to be sent adds up."""
    factor = np.float32(1) if scales == "like" else np.exp(3 * normal(7))
    gradients = [normal(8) * factor, normal(9) * factor]
    exact, steps = np.mean(gradients, axis=0, dtype=np.float64), 200
    missed = {}
    for kind in KINDS:
        workers = ServerOracle(config(kind, bits=bits), 2)
        sent = sum(workers.average(gradients, round=step).astype(np.float64) for step in range(steps))
        missed[kind] = relative(sent / steps - exact, exact)
    assert missed["float32"] < 0.01
    assert missed["bfloat16"] == pytest.approx(missed["float32"], rel=0.05)


def test_gradients_that_are_not_finite_leave_it_alone():
    workers = ServerOracle(config("bfloat16"), 2)
    before = workers.encode([normal(0), normal(1)], round=0)[0].residual.copy()
    broken = normal(2)
    broken[10] = np.inf
    workers.encode([normal(3), broken], round=1)
    np.testing.assert_array_equal(workers.residual(0, "w"), before)


def test_the_setting_is_each_worker_s_own():
    wide, half = (config(kind).resolve(4) for kind in KINDS)
    assert (wide.table, wide.shared_hash, wide.settings) == (half.table, half.shared_hash, half.settings)
    assert ThcConfig().residual_dtype == "float32"
    with pytest.raises(ConfigurationError, match="residual_dtype"):
        ThcConfig(residual_dtype="float16")


def test_arrays_of_another_type_are_refused():
    compressor = ServerOracle(config("bfloat16"), 1).compressors[0]
    with pytest.raises(InputError, match=r"residual must be uint16\[100\], not float32\[100\]"):
        compressor.partition("w", 100, residual=np.zeros(100, np.float32))
    partition = compressor.partition("w", 100)
    partition.residual = np.zeros(100, np.float16)
    with pytest.raises(InputError, match=r"residual: expected float32 or uint16 \(bfloat16 bits\)"):
        compressor.measure(partition, np.ones(100, np.float32), round=0)
