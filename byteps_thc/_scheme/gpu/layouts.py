"""Layouts: which thread holds which coordinate of a tile, for each step of a transform.

A tile is T = 2^LOG coordinates in T / 1024 warps: every thread holds 32 of them, so five bits of a coordinate's index
are register bits. A stage of the Hadamard transform of distance 2^s costs no exchange if bit s is a register bit:

    part 0   {0, 1, 2, 3, 4}   a thread has 32 consecutive coordinates: one word of signs, whole bytes of codes
    part 1   {0, 5, 6, 7, 8}
    part 2   {0, 9, 10, 11, 12}, and so on

All parts share the lowest bit: exchanges access 8 bytes of shared memory at a time, fastest on an H100.
"""

from collections.abc import Callable
from typing import Any

from byteps_thc._base.limits import MAX_GPU_ROTATION_BLOCK
from byteps_thc._scheme.gpu.frontend import PLAIN, L, constexpr_function

#: Register bits of a thread, and of a row: a thread's coordinates in part 0.
REGISTER_BITS = 5
ROW = 1 << REGISTER_BITS
#: Smaller rotation blocks share a tile.
MIN_TILE = 8192
MAX_TILE = MAX_GPU_ROTATION_BLOCK
WARP_COORDINATES = 32 << REGISTER_BITS
#: Lowest index bits, register bits in all parts.
SHARED = 1


@constexpr_function
def warps(tile: int) -> int:
    return tile >> (5 + REGISTER_BITS)


@constexpr_function
def _linear(registers: list[int], threads: list[int], place: Callable[[int], list[int]], shape: list[int]) -> Any:
    lanes, upper = threads[:5], threads[5:]
    return L.DistributedLinearLayout(
        [place(bit) for bit in registers], [place(bit) for bit in lanes], [place(bit) for bit in upper], [], shape
    )


@constexpr_function
def part_bits(log: int, part: int) -> list[int]:
    """Register bits of a part; each bit is in at least one part."""
    if part == 0:
        return list(range(REGISTER_BITS))
    fresh = REGISTER_BITS - SHARED
    first = first_stage(part)
    bits = list(range(SHARED)) + [bit for bit in range(first, first + fresh) if bit < log]
    spare = [bit for bit in range(log - 1, -1, -1) if bit not in bits]
    return sorted(bits + spare[: REGISTER_BITS - len(bits)])


@constexpr_function
def _threads(log: int, registers: list[int]) -> list[int]:
    """Lowest bits first: consecutive lanes hold consecutive coordinates."""
    return [bit for bit in range(log) if bit not in registers]


@constexpr_function
def _log(tile: int) -> int:
    return tile.bit_length() - 1


@constexpr_function
def first_stage(part: int) -> int:
    return 0 if part == 0 else REGISTER_BITS + (REGISTER_BITS - SHARED) * (part - 1)


@constexpr_function
def end_stage(part, LOG):
    """The stage after the last one of a part, in a transform of 2^LOG."""
    return min(first_stage(part + 1), LOG)


@constexpr_function
def flat(T, part):
    if PLAIN:
        return None
    registers = part_bits(_log(T), part)
    return _linear(registers, _threads(_log(T), registers), lambda bit: [1 << bit], [T])


@constexpr_function
def last_part(T):
    """The part of the last stages: it also suits accesses to device memory."""
    part = 0
    while first_stage(part + 1) < _log(T):
        part += 1
    return part


@constexpr_function
def rows(T, part, columns):
    """Layout of [T / 32, columns] where that is [T] (columns = 32) or its pairs (16) in a part."""
    if PLAIN:
        return None
    log, registers = _log(T), part_bits(_log(T), part)
    skip = REGISTER_BITS - (columns.bit_length() - 1)

    def place(bit: int) -> list[int]:
        return [0, 1 << (bit - skip)] if bit < REGISTER_BITS else [1 << (bit - REGISTER_BITS), 0]

    return _linear([bit for bit in registers if bit >= skip], _threads(log, registers), place, [T // ROW, columns])


@constexpr_function
def consecutive(T, N):
    """Layout of [N], like a thread's in part 0: N / threads consecutive coordinates."""
    if PLAIN:
        return None
    log = _log(N)
    registers = list(range(log - (_log(T) - REGISTER_BITS)))
    return _linear(registers, _threads(log, registers), lambda bit: [1 << bit], [N])


@constexpr_function
def of_rows(parent):
    """Layout of [T / 32]: one element for each row of a layout of rows()."""
    return None if PLAIN else L.SliceLayout(1, parent)


@constexpr_function
def of_columns(parent):
    return None if PLAIN else L.SliceLayout(0, parent)


@constexpr_function
def spread(N, num_warps):
    """Layout of [N] with as few elements a thread as possible."""
    if PLAIN:
        return None
    log, threads = _log(N), 5 + _log(num_warps)
    bits = [[1 << bit] if bit < log else [0] for bit in range(max(threads, log))]
    return L.DistributedLinearLayout(bits[threads:], bits[:5], bits[5:threads], [], [N])


@constexpr_function
def rounding(T):
    """Layout of [T / 64, 8], the Philox blocks of rounding bits: four a thread, neighbours in a row.

    Rows are in other warps than in rows(): words then travel through shared memory, with fewer instructions.
    """
    if PLAIN:
        return None
    log = _log(T) - 3
    threads = list(range(2, log))
    return _linear(
        [0, 1], threads[-5:] + threads[:-5], lambda bit: [0, 1 << bit] if bit < 3 else [1 << (bit - 3), 0], [T // 64, 8]
    )


@constexpr_function
def streamed(N, num_warps, elements):  # noqa: ARG001
    """Layout of [N]: `elements` consecutive ones a thread at a time."""
    return None if PLAIN else L.BlockedLayout([elements], [32], [num_warps], [0])
