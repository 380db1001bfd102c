"""Shards of a bucket are copied in one launch, whatever they are: in Triton's interpreter, and compiled for a GPU."""

from collections.abc import Callable
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "evaluation"
_COMPILED = """
import gpu_resources
from byteps_thc._scheme.gpu.part_copies import TILE, WARPS, copy_parts_kernel
types = {"whole": "*i32", "packed": "*i32", "starts": "*i64", "sources": "*i64", "parts": "i32", "size": "i64"}
for pack in (True, False):
    constants = {"STEPS": 11, "PACK": pack}
    kernel = gpu_resources.Kernel("copy parts", copy_parts_kernel, types, constants, WARPS, TILE)
    print(gpu_resources.compile_kernel(kernel, "sm_90").asm["ptx"].count("st.global"))
"""


def test_one_launch_has_the_bits_of_copies_by_parameter(interpret: Callable[..., str]) -> None:
    assert "same bits: 48 cases" in interpret("part_bits.py")


def test_the_kernel_compiles_for_a_gpu(run_python: Callable[..., str]) -> None:
    stores = run_python("-c", _COMPILED, PYTHONPATH=str(SCRIPTS)).split()
    assert len(stores) == 2
    assert all(int(count) > 0 for count in stores)
