"""measure and encode are rotate, quantize and keep_residual in fewer passes: the same to the bit."""

import numpy as np
import pytest

from byteps_thc import Compressor, ThcConfig, _core
from byteps_thc.errors import ConfigurationError, InputError

CONFIGS = [
    ThcConfig(),
    ThcConfig(bits=3, rotation_block=64),
    ThcConfig(bits=8, granularity=255, rotation_block=1 << 16),
    ThcConfig(error_feedback=False),
]


@pytest.mark.parametrize("instruction_set", [None, "naive"])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("coordinates", [1, 63, 32768, 100_001])
def test_encode_equals_the_stages(config, coordinates, instruction_set):
    random = np.random.default_rng(3)
    staged, fused = (Compressor(config, workers=1, worker=0) for _ in range(2))
    _core.use_instruction_set(instruction_set)
    try:
        for step in range(3):
            gradient = random.normal(size=coordinates).astype(np.float16 if step == 2 else np.float32)
            expected = staged.rotate("g", gradient, tensor=7, round=step)
            staged.quantize(expected, expected.norms * np.float32(1.25))
            staged.keep_residual(expected)
            partition = fused.measure("g", gradient, tensor=7, round=step)
            assert partition.norms.tobytes() == expected.norms.tobytes()
            codes = fused.encode(partition, gradient, partition.norms * np.float32(1.25))
            assert codes.tobytes() == expected.codes.tobytes()
            assert partition.clamped == expected.clamped
            if config.error_feedback:
                assert partition.residual.tobytes() == expected.residual.tobytes()
                assert partition.residual.any()
    finally:
        _core.use_instruction_set(None)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_leaves_the_residual(bad):
    compressor = Compressor(ThcConfig(), workers=1, worker=0)
    gradient = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    partition = compressor.measure("g", gradient, tensor=0, round=0)
    compressor.encode(partition, gradient, partition.norms)
    assert partition.residual_kept
    before = partition.residual.tobytes()
    gradient[0] = bad
    partition = compressor.measure("g", gradient, tensor=0, round=1)
    compressor.encode(partition, gradient, partition.norms)
    assert partition.residual.tobytes() == before
    assert not partition.residual_kept


def test_order_and_sizes_are_checked():
    compressor = Compressor(ThcConfig(), workers=1, worker=0)
    gradient = np.ones(100, np.float32)
    partition = compressor.rotate("g", gradient, tensor=0, round=0)
    with pytest.raises(InputError, match="rotated"):
        compressor.encode(partition, gradient, partition.norms)
    partition = compressor.measure("g", gradient, tensor=0, round=1)
    with pytest.raises(InputError, match="measured"):
        compressor.quantize(partition, partition.norms)
    with pytest.raises(InputError, match="has 99 coordinates"):
        compressor.encode(partition, gradient[1:], partition.norms)


def test_partitions_on_arrays_of_the_caller():
    compressor = Compressor(ThcConfig(), workers=1, worker=0)
    _, padded = compressor.layout(100)
    residual, codes = np.zeros(100, np.float32), np.zeros(padded // 2, np.uint8)
    partition = compressor.partition("g", 100, residual=residual, codes=codes)
    gradient = np.arange(100, dtype=np.float32)
    assert compressor.measure("g", gradient, tensor=0, round=0) is partition
    compressor.encode(partition, gradient, partition.norms)
    assert residual.any()
    assert codes.any()
    with pytest.raises(InputError, match="already"):
        compressor.partition("g", 100)
    with pytest.raises(InputError, match="residual must be"):
        compressor.partition("h", 100, residual=residual[1:])
    with pytest.raises(ConfigurationError, match="without error feedback"):
        Compressor(ThcConfig(error_feedback=False), workers=1, worker=0).partition("g", 100, residual=residual)
