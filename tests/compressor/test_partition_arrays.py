"""Partitions on arrays of the caller."""

import numpy as np
import pytest

from byteps_thc import Compressor, ThcConfig
from byteps_thc._scheme.errors import ConfigurationError, InputError


def test_partitions_on_arrays_of_the_caller():
    compressor = Compressor(ThcConfig(error_feedback=True), workers=1, worker=0)
    blocks, padded = compressor.sizes(100)
    residual, norms, codes = np.zeros(100, np.float32), np.zeros(blocks, np.float32), np.zeros(padded // 2, np.uint8)
    partition = compressor.partition("g", 100, residual=residual, norms=norms, codes=codes)
    gradient = np.arange(100, dtype=np.float32)
    assert compressor.measure(partition, gradient, round=0) is norms
    compressor.encode(partition, norms)
    assert residual.any()
    assert codes.any()
    for wrong in ({"residual": residual[1:]}, {"norms": norms[1:]}, {"codes": codes[::2]}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be"):
            compressor.partition("h", 100, **wrong)
    with pytest.raises(ConfigurationError, match="a residual needs error feedback"):
        Compressor(ThcConfig(error_feedback=False), workers=1, worker=0).partition("g", 100, residual=residual)
