"""The emulator of PTX finds races, accesses out of bounds and unknown instructions."""

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_emulator import Kernel
from ptx_memory import PtxError

#: Threads tell each other their numbers.
_NEIGHBOURS = """
.visible .entry neighbours(.param .u64 neighbours_param_0)
{
    mov.u32 %r1, %tid.x;
    mov.b32 %r2, global_smem;
    mad.lo.s32 %r2, %r1, 4, %r2;
    st.shared.b32 [%r2], %r1;
    BARRIER;
    xor.b32 %r3, %r2, DISTANCE;
    ld.shared.b32 %r4, [%r3];
    ld.param.b64 %rd1, [neighbours_param_0];
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    st.global.b32 [%rd1], %r4;
$L__BB0_1:
    ret;
}
"""


def numbers_of_neighbours(barrier: str, distance: int, threads: int = 64) -> NDArray[np.uint32]:
    numbers = np.zeros(64, np.uint32)
    ptx = _NEIGHBOURS.replace("BARRIER", barrier).replace("DISTANCE", f"{distance}")
    Kernel(ptx, threads=threads, shared=4 * threads).run(1, [numbers.ctypes.data], [numbers.view(np.uint8)])
    return numbers


@pytest.mark.parametrize(("barrier", "distance"), [("bar.warp.sync -1", 4), ("bar.sync 0", 128)])
def test_barriers_are_between_accesses(barrier: str, distance: int) -> None:
    np.testing.assert_array_equal(numbers_of_neighbours(barrier, distance), np.arange(64) ^ distance // 4)


@pytest.mark.parametrize(
    ("barrier", "distance", "threads", "message"),
    [
        ("", 4, 64, r"ld\.shared.*race: no barrier"),
        ("bar.warp.sync -1", 128, 64, r"ld\.shared.*race: no barrier"),
        ("st.shared.b32 [0], %r1", 4, 64, r"st\.shared.*race"),
        ("bar.sync 0", 256, 64, r"ld\.shared.*out of bounds: byte 511 of 256"),
        ("bar.sync 0", 4, 96, r"st\.global.*out of bounds: bytes 0 to 383 of 256"),
        ("bar.sync 0", 2, 64, r"ld\.shared.*misaligned"),
        ("setp.eq.s32 %p1, %r1, 5; @%p1 bra $L__BB0_1", 4, 64, r"bra.*some threads are missing"),
        ("fma.rn.f32 %r1, %r1, %r1, %r1", 4, 64, r"unknown instruction fma\.rn\.f32"),
    ],
)
def test_faults_are_found(barrier: str, distance: int, threads: int, message: str) -> None:
    with pytest.raises(PtxError, match=message):
        numbers_of_neighbours(barrier, distance, threads)
