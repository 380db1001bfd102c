"""Memory of emulated PTX: arrays with their bounds, and a program's shared memory with its races."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Bytes of a memory, or of an access: [lanes, size].
Bytes = NDArray[np.uint8]
#: Addresses of the bytes of an access, [lanes, size], or numbers of lanes.
Numbers = NDArray[np.int64]
_NOBODY, _SEVERAL = -1, -2


class PtxError(Exception):
    """The emulated code does something that it must not do, or that is not emulated."""


class GlobalMemory:
    """Arrays at their addresses. An access of all threads goes to one array."""

    def __init__(self, arrays: Sequence[Bytes]) -> None:
        self._arrays = arrays

    def load(self, at: Numbers, lanes: Numbers) -> Bytes:  # noqa: ARG002
        array, places = self._find(at)
        return array[places]

    def store(self, at: Numbers, lanes: Numbers, values: Bytes) -> None:  # noqa: ARG002
        array, places = self._find(at)
        array[places] = values

    def _find(self, at: Numbers) -> tuple[Bytes, Numbers]:
        outside = []
        for array in self._arrays:
            places = at - array.ctypes.data
            if not at.size or (places.min() >= 0 and places.max() < array.size):
                return array, places
            outside.append(f"{places.min()} to {places.max()} of {array.size}")
        raise PtxError(f"out of bounds: bytes {', '.join(outside)}")


class SharedMemory:
    """Bytes of one program, first rubbish. Accesses of two threads without a barrier between them are races."""

    def __init__(self, size: int, threads: int) -> None:
        self._bytes, lanes = np.full(size, 0xEE, np.uint8), np.arange(threads)
        #: of warps since the last barrier of the program, and of lanes since the last one of their warps
        self._accesses = _Accesses(size, lanes // 32), _Accesses(size, lanes)

    def load(self, at: Numbers, lanes: Numbers) -> Bytes:
        self._check_bounds(at)
        for accesses in self._accesses:
            accesses.read(at, lanes)
        return self._bytes[at]

    def store(self, at: Numbers, lanes: Numbers, values: Bytes) -> None:
        self._check_bounds(at)
        for accesses in self._accesses:
            accesses.write(at, lanes)
        self._bytes[at] = values
        if (self._bytes[at] != values).any():
            raise PtxError("race: threads store different values")

    def synchronize(self, *, warps_alone: bool) -> None:
        """All threads are at a barrier. warps_alone: each warp at one of its own."""
        for accesses in self._accesses[warps_alone:]:
            accesses.forget()

    def _check_bounds(self, at: Numbers) -> None:
        if at.size and at.max() >= self._bytes.size:
            raise PtxError(f"out of bounds: byte {at.max()} of {self._bytes.size} shared")


class _Accesses:
    """Readers and writers of each byte since a barrier. owners: of lanes."""

    def __init__(self, size: int, owners: Numbers) -> None:
        self._owners = owners
        self._readers, self._writers = np.full(size, _NOBODY), np.full(size, _NOBODY)

    def read(self, at: Numbers, lanes: Numbers) -> None:
        owners, seen = self._owners[lanes, np.newaxis], self._readers[at]
        _refuse_others(self._writers[at], owners)
        self._readers[at] = np.where((seen == _NOBODY) | (seen == owners), owners, _SEVERAL)
        self._readers[at[self._readers[at] != owners]] = _SEVERAL

    def write(self, at: Numbers, lanes: Numbers) -> None:
        owners = self._owners[lanes, np.newaxis]
        _refuse_others(self._readers[at], owners)
        _refuse_others(self._writers[at], owners)
        self._writers[at] = owners

    def forget(self) -> None:
        self._readers[:] = self._writers[:] = _NOBODY


def _refuse_others(seen: Numbers, owners: Numbers) -> None:
    if ((seen != _NOBODY) & (seen != owners)).any():
        raise PtxError("race: no barrier since another thread's access of these bytes")
