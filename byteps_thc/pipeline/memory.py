"""Where residuals lie: NumPy arrays in host memory; device/memory.py has tensors on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from typing_extensions import TypeVar, override

from byteps_thc.arrays import F32

#: float32 arrays: NumPy's, or tensors
ArrayT = TypeVar("ArrayT", default=F32, bound=Any)


class Memory(Protocol[ArrayT]):
    """What of arrays is not the same for NumPy and torch; arrays are float32, contiguous, 1-D but for like()."""

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

    def to_host(self, parts: Sequence[ArrayT]) -> F32:
        """Return their concatenation as a new array in host memory."""

    def from_host(self, array: F32) -> ArrayT:
        """Return an array of the caller's own; it may be the same memory."""


class HostMemory(Memory[F32]):
    """NumPy arrays."""

    @override
    def zeros(self, size: int) -> F32:
        return np.zeros(size, np.float32)

    @override
    def like(self, array: F32) -> F32:
        return np.empty(array.shape, np.float32)

    @override
    def concatenate(self, parts: Sequence[F32]) -> F32:
        return np.concatenate(parts)

    @override
    def scale(self, array: F32, factor: float) -> None:
        array *= np.float32(factor)

    @override
    def address(self, array: F32) -> int:
        address: int = array.__array_interface__["data"][0]
        return address

    @override
    def energy(self, array: F32) -> float:
        return float(np.dot(array, array))

    @override
    def to_host(self, parts: Sequence[F32]) -> F32:
        return np.concatenate(parts)

    @override
    def from_host(self, array: F32) -> F32:
        return array


#: Any, so that it can be the default of what is generic.
HOST: Any = HostMemory()
