"""Where residuals lie: NumPy arrays in host memory; device/memory.py has tensors on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from typing_extensions import TypeVar, override

from byteps_thc.arrays import Residual, ResidualDtype, energy_of, residual_array_dtype, rounded, widened

#: float32 or bfloat16 arrays: NumPy's, or tensors
ArrayT = TypeVar("ArrayT", default=Residual, bound=Any)
#: Elements that are looked at together, so that what they are widened to stays in the cache.
_CHUNK = 1 << 15


class Memory(Protocol[ArrayT]):
    """What of arrays is not the same for NumPy and torch; arrays are contiguous, 1-D but for like().

    Here is what they are kept in, which the kernels take from the arrays themselves.
    """

    def zeros(self, size: int) -> ArrayT:
        """Return a new array of zeros."""

    def like(self, array: ArrayT) -> ArrayT:
        """Return a new array of that shape, of anything."""

    def concatenate(self, parts: Sequence[ArrayT]) -> ArrayT:
        """Return a new array."""

    def scale(self, array: ArrayT, factor: float) -> None:
        """Multiply in place."""

    def address(self, array: ArrayT) -> int:
        """Return where the array begins."""

    def energy(self, array: ArrayT) -> float:
        """Return the squared Euclidean norm."""

    def to_host(self, parts: Sequence[ArrayT]) -> Residual:
        """Return their concatenation as a new array in host memory."""

    def from_host(self, array: Residual) -> ArrayT:
        """Return one of either type as an array of the caller's own; it may be the same memory."""


class HostMemory(Memory[Residual]):
    """NumPy arrays; bfloat16 is rounded to nearest even."""

    def __init__(self, dtype: ResidualDtype = "float32") -> None:
        self._dtype: ResidualDtype = dtype

    @override
    def zeros(self, size: int) -> Residual:
        return np.zeros(size, residual_array_dtype(self._dtype))

    @override
    def like(self, array: Residual) -> Residual:
        return np.empty_like(array)

    @override
    def concatenate(self, parts: Sequence[Residual]) -> Residual:
        return np.concatenate(parts, dtype=residual_array_dtype(self._dtype))

    @override
    def scale(self, array: Residual, factor: float) -> None:
        for chunk in _chunks(array):
            chunk[:] = rounded(widened(chunk) * np.float32(factor), self._dtype)

    @override
    def address(self, array: Residual) -> int:
        address: int = array.__array_interface__["data"][0]
        return address

    @override
    def energy(self, array: Residual) -> float:
        if array.dtype == np.float32:
            return energy_of(array)
        return sum(energy_of(wide) for wide in map(widened, _chunks(array)))

    @override
    def to_host(self, parts: Sequence[Residual]) -> Residual:
        return np.concatenate(parts, dtype=residual_array_dtype(self._dtype))

    @override
    def from_host(self, array: Residual) -> Residual:
        return array if array.dtype == residual_array_dtype(self._dtype) else rounded(widened(array), self._dtype)


def _chunks(array: Residual) -> Iterator[Residual]:
    return (array[start : start + _CHUNK] for start in range(0, len(array), _CHUNK))


#: Any, so that it can be the default of what is generic.
HOST: Any = HostMemory()
