"""What quantization lost of every parameter, by parameter name, wherever the parameter lies at the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from byteps_thc.arrays import Residual
from byteps_thc.pipeline.buffers import ParameterSlice
from byteps_thc.pipeline.memory import HOST, ArrayT, Memory
from byteps_thc.pipeline.saved_state import require_size, residual_array


@dataclass
class _Home(Generic[ArrayT]):
    """The residual of a buffer layout, and the parameters that have theirs in it."""

    flat: ArrayT
    missing: set[str]
    present: set[str]


class Residuals(Generic[ArrayT]):
    """Flat residuals of buffer layouts; parameters that turn up in another layout take theirs along.

    DDP rebuilds its buckets after the first iteration, and a checkpoint may come from other buckets. A parameter may
    have several slices in a buffer (FSDP's shards); its residual is all of them in that order. Not thread-safe.

    memory: where they lie, and in what type.
    """

    def __init__(self, memory: Memory[ArrayT] = HOST) -> None:
        self._memory = memory
        self._homes: dict[str, _Home[ArrayT]] = {}
        self._home_of: dict[str, str] = {}  # parameter -> layout
        self._parts: dict[str, list[ArrayT]] = {}  # parameter -> its parts of a flat residual, or what was loaded

    def of(self, key: str, size: int, parameters: Sequence[ParameterSlice]) -> ArrayT:
        """Return the flat residual, [size], of a layout, to be read and written in place.

        It stays the same array until all its parameters have moved to other layouts, or load(). ConfigurationError
        when a parameter had another size before.
        """
        home = self._homes.get(key)
        if home is None:
            home = _Home(self._memory.zeros(size), {parameter.name for parameter in parameters}, set())
        if home.missing:
            slices: dict[str, list[ParameterSlice]] = {}
            for parameter in parameters:
                slices.setdefault(parameter.name, []).append(parameter)
            self._check_sizes(slices)
            self._homes[key] = home
            for name in sorted(home.missing):
                self._move(name, [home.flat[part.start : part.stop] for part in slices[name]], key)
        return home.flat

    def scale(self, factor: float) -> None:
        """Multiply all residuals."""
        for parts in self._parts.values():
            for part in parts:
                self._memory.scale(part, factor)

    def energy(self) -> float:
        """Return the squared Euclidean norm of all of them together."""
        return sum(self._memory.energy(part) for parts in self._parts.values() for part in parts)

    def state(self) -> dict[str, Residual]:
        """Return copies by parameter name, 1-D, of the memory's type."""
        return {name: self._memory.to_host(parts) for name, parts in self._parts.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace all residuals by copies of these arrays or tensors; parameters without one begin at zero.

        Those of another type than the memory's are converted. Raises ConfigurationError
        when one is not a finite 1-D array or tensor of float32 or bfloat16; then nothing has changed.
        """
        arrays = {name: residual_array(name, value).copy() for name, value in state.items()}
        parts = {name: [self._memory.from_host(array)] for name, array in arrays.items()}
        self._homes.clear()
        self._home_of.clear()
        self._parts = parts

    def require_sizes(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigurationError when a state has another size of a parameter whose gradients have been here."""
        for name, value in state.items():
            if name in self._home_of:
                size = sum(len(part) for part in self._parts[name])
                require_size(name, residual_array(name, value).size, size)

    def _check_sizes(self, slices: Mapping[str, Sequence[ParameterSlice]]) -> None:
        for name, parts in slices.items():
            if name in self._parts:
                known = sum(len(part) for part in self._parts[name])
                require_size(name, known, sum(part.size for part in parts))

    def _move(self, name: str, parts: list[ArrayT], key: str) -> None:
        if name in self._parts:
            residual = self._memory.concatenate(self._parts[name])
            for part in parts:
                part[:], residual = residual[: len(part)], residual[len(part) :]
        else:
            for part in parts:
                part[:] = 0
        previous = self._homes.get(self._home_of.get(name, ""))
        if previous is not None:
            previous.present.discard(name)
            previous.missing.add(name)
            if not previous.present:
                del self._homes[self._home_of[name]]
        home = self._homes[key]
        home.missing.discard(name)
        home.present.add(name)
        self._parts[name] = parts
        self._home_of[name] = key
