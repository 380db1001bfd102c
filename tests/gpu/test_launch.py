"""Which launches are looked up again. Kernels themselves are launched that way on a GPU only: engines_on_device.py."""

from __future__ import annotations

from collections.abc import Callable

_PROGRAM = """
import torch
from byteps_thc._scheme.gpu.launch import Launcher

class Kernel:
    def __init__(self, name):
        self.name = name
    def __getitem__(self, grid):
        def run(*arguments, **options):
            print(self.name, grid, len(arguments), options)
            return Kernel("again")
        return run

memory = torch.zeros(100)
launch = Launcher(Kernel("looked up"), enable_fp_fusion=False)
for arguments, constants in [
    ((memory, 32, 1.5), (True,)),
    ((memory[4:], 48, 2.5), (True,)),
    ((memory[1:], 32, 1.5), (True,)),
    ((memory.half(), 32, 1.5), (True,)),
    ((memory, 33, 1.5), (True,)),
    ((memory, 1, 1.5), (True,)),
    ((memory, 17, 1.5), (True,)),
    ((memory, 1 << 32, 1.5), (True,)),
    ((memory, 32, 1.5), (False,)),
    ((memory, 32, 1.5), (True,)),
]:
    launch(7, arguments, constants, 4)
launch(7, (memory, 32, 1.5), (True,), 8)
"""


def test_kernels_are_looked_up_for_what_they_are_compiled_for(run_python: Callable[..., str]) -> None:
    """Formats, alignments, ones, multiples of 16, 64 bits, constants and warps: not for other addresses and numbers."""
    lines = run_python("-c", _PROGRAM, TRITON_INTERPRET="0").splitlines()
    looked_up = "looked up (7,) 4 {'num_warps': 4, 'enable_fp_fusion': False}"
    again = "again (7, 1, 1) 4 {}"
    wide = "looked up (7,) 4 {'num_warps': 8, 'enable_fp_fusion': False}"
    assert lines == [looked_up, again, *[looked_up] * 4, again, *[looked_up] * 2, again, wide]
