"""The kernels and GpuCompressor in Triton's interpreter: the CPU's bits, without tolerance."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.timeout(600)
def test_every_kernel_has_the_bits_of_the_cpu(interpret: Callable[..., str]) -> None:
    printed = interpret("kernel_bits.py")
    assert "DIFFERENT" not in printed
    assert printed.count("same bits: ") >= 21
    for check in ("check_encode", "check_decode", "check_lookup_sum", "check_packing"):
        assert check in printed


@pytest.mark.timeout(600)
def test_gpu_compressor_goes_through_rounds_as_compressor_does(interpret: Callable[..., str]) -> None:
    assert "same bits" in interpret("compressor_bits.py")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(8))
def test_odd_sizes_blocks_formats_and_alignments(interpret: Callable[..., str], part: int) -> None:
    assert "DIFFERENT" not in interpret("kernel_bits.py", "--large", "--part", f"{part}/8")
