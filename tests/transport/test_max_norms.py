"""Norms as integers: ordered like floats, whatever sign a NaN has."""

from __future__ import annotations

import numpy as np

from byteps_thc.transport.max_norms import MaxNorms


def test_a_nan_is_above_all_norms_whatever_its_sign() -> None:
    norms = np.array([0.0, 1.5, np.inf, np.nan, -np.nan, -0.0], np.float32)
    assert np.signbit(norms[4])
    maximum = MaxNorms(norms.size)
    maximum.begin(norms)
    zero, finite, infinite, nan, negative_nan, negative_zero = maximum.bits.tolist()
    assert 0 == zero == negative_zero < finite < infinite < nan == negative_nan
    assert np.isnan(maximum.values[3:5]).all()
