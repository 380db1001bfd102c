"""measure and encode are rotate, quantize and inverse_rotate in fewer passes through memory: the same to the bit."""

import _core_test as core
import numpy as np
import pytest

from byteps_thc import Compressor, ThcConfig
from byteps_thc._scheme.arrays import residual_array_dtype
from byteps_thc._scheme.errors import ConfigurationError, InputError

CONFIGS = [
    ThcConfig(error_feedback=True),
    ThcConfig(bits=3, rotation_block=64, error_feedback=True),
    ThcConfig(bits=8, granularity=255, rotation_block=1 << 16, error_feedback=True),
    ThcConfig(error_feedback=False),
    ThcConfig(error_feedback=True, residual_dtype="bfloat16"),
]


class Staged:
    """The kernels of one stage each, with arrays between them."""

    def __init__(self, compressor, coordinates):
        self.compressor = compressor
        blocks, padded = compressor.sizes(coordinates)
        self.rotated, self.norms = np.zeros(padded, np.float32), np.zeros(blocks, np.float32)
        self.codes = np.zeros(core.code_bytes(padded, compressor.config.code_bits), np.uint8)
        kept = residual_array_dtype(compressor.config.residual_dtype)
        self.residual = np.zeros(coordinates, kept) if compressor.resolved.error_feedback else None
        self.coordinates = coordinates

    def encode(self, gradient, key, factor):
        config, table = self.compressor.config, self.compressor.table
        block = {"rotation_block": config.rotation_block}
        core.block_norms(gradient, self.residual, self.norms, **block)
        core.rotate(gradient, self.residual, self.rotated, **block, **key)
        self.clamped = core.quantize(
            self.rotated,
            self.norms * factor,
            self.codes,
            coordinates=self.coordinates,
            values=table.array,
            bits=config.code_bits,
            threshold=table.threshold,
            domain=1,
            phase=0,
            keep_error=config.error_feedback,
            **block,
            **key,
        )
        if config.error_feedback:
            core.inverse_rotate(self.rotated, self.residual, **block, **key)


@pytest.mark.parametrize("instruction_set", [None, core.instruction_sets()[-1]])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("coordinates", [1, 63, 32768, 100_001])
def test_encode_equals_the_stages(config, coordinates, instruction_set):
    random = np.random.default_rng(3)
    compressor, factor = Compressor(config, workers=1, worker=0), np.float32(1.25)
    expected, partition = Staged(compressor, coordinates), compressor.partition("g", coordinates, tensor=7)
    core.use_instruction_set(instruction_set)
    try:
        for step in range(3):
            gradient = random.normal(size=coordinates).astype(np.float16 if step == 2 else np.float32)
            expected.encode(gradient, {"seed": config.seed, "tensor": 7, "round": step}, factor)
            norms = compressor.measure(partition, gradient, round=step)
            assert norms.tobytes() == expected.norms.tobytes()
            codes = compressor.encode(partition, norms * factor)
            assert codes.tobytes() == expected.codes.tobytes()
            assert partition.clamped == expected.clamped
            if config.error_feedback:
                assert partition.residual.tobytes() == expected.residual.tobytes()
                assert partition.residual.any()
    finally:
        core.use_instruction_set(None)


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
    with pytest.raises(ConfigurationError, match="without error feedback"):
        Compressor(ThcConfig(error_feedback=False), workers=1, worker=0).partition("g", 100, residual=residual)
