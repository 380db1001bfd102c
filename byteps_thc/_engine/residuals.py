"""Residuals of quantization by parameter name, and their rollback after a skipped step."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from byteps_thc._engine.engine import ParameterSlice
from byteps_thc._engine.saved_state import State, require_size, residual_array

_CPU = torch.device("cpu")


def energy_of(residual: Tensor) -> float:
    return float(torch.linalg.vector_norm(residual, dtype=torch.float64)) ** 2


@dataclass
class _Home:
    """The residual of a buffer layout, and the parameters with their residuals in it."""

    flat: Tensor
    missing: set[str]
    present: set[str]


class Residuals:
    """Flat residuals of buffer layouts; a parameter that moves to another layout takes its residual along.

    DDP rebuilds its buckets after the first iteration, and a checkpoint may come from other buckets. A parameter may
    have several slices in a buffer (FSDP's shards); its residual is all of them in that order. Not thread-safe.

    device: of the residuals.
    """

    def __init__(self, device: torch.device = _CPU) -> None:
        self._device = device
        self._homes: dict[str, _Home] = {}
        self._home_of: dict[str, str] = {}  # parameter -> layout
        self._parts: dict[str, list[Tensor]] = {}  # parameter -> its parts of a flat residual, or a loaded residual

    def of(self, key: str, size: int, parameters: Sequence[ParameterSlice]) -> Tensor:
        """Return the flat residual, [size], of a layout, to be read and written in place.

        It stays the same tensor until all its parameters have moved to other layouts, or load(). Raises
        ConfigurationError if a parameter had another size before.
        """
        home = self._homes.get(key)
        if home is None:
            home = _Home(
                torch.zeros(size, device=self._device),
                {parameter.name for parameter in parameters},
                set(),
            )
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
        for parts in self._parts.values():
            for part in parts:
                part *= float(np.float32(factor))

    def energy(self) -> float:
        return sum(energy_of(part) for parts in self._parts.values() for part in parts)

    def state(self) -> dict[str, Tensor]:
        return {name: torch.cat(parts).cpu() for name, parts in self._parts.items()}

    def load(self, state: State) -> None:
        """Replace all residuals by copies of these arrays or tensors; parameters without one begin at zero.

        Raises ConfigurationError, with nothing changed, unless all are finite 1-D float32 arrays or tensors.
        """
        arrays = {name: residual_array(name, value).copy() for name, value in state.items()}
        parts = {name: [torch.from_numpy(array).to(self._device)] for name, array in arrays.items()}
        self._homes.clear()
        self._home_of.clear()
        self._parts = parts

    def require_sizes(self, state: State) -> None:
        """Raise ConfigurationError if a state has another size of a known parameter."""
        for name, value in state.items():
            if name in self._home_of:
                size = sum(len(part) for part in self._parts[name])
                require_size(name, residual_array(name, value).size, size)

    def _check_sizes(self, slices: Mapping[str, Sequence[ParameterSlice]]) -> None:
        for name, parts in slices.items():
            if name in self._parts:
                known = sum(len(part) for part in self._parts[name])
                require_size(name, known, sum(part.size for part in parts))

    def _move(self, name: str, parts: list[Tensor], key: str) -> None:
        if name in self._parts:
            residual = torch.cat(self._parts[name])
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


class Rollback:
    """Copies residuals before they are overwritten, and restores them if an average was not finite.

    Does nothing before the first begin(). One thread calls save() for a residual, any thread request() and
    forget_unsaved(); all other calls need an engine with nothing in flight.
    """

    def __init__(self) -> None:
        self.active = False
        self._requested = False
        self._lock = threading.Lock()  # guards the saved residuals between save() and forget_unsaved()
        self._saved: set[tuple[int, tuple[int, ...]]] = set()  # in this step
        #: address and shape of a residual -> the residual, kept alive, and memory for its copy
        self._copies: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]] = {}

    def begin(self) -> None:
        """Begin a step, after rolling back the last one if requested."""
        self.apply()
        self.active = True
        self._requested = False
        self._saved.clear()

    def save(self, residual: Tensor) -> None:
        """Copy a residual before its first overwrite in a step. Residuals must always be cut in the same way."""
        if not self.active:
            return
        key = (residual.data_ptr(), tuple(residual.shape))
        with self._lock:
            if key in self._saved:
                return
            if key not in self._copies:
                self._copies[key] = (residual, torch.empty_like(residual))
            self._copies[key][1].copy_(residual)
            self._saved.add(key)

    def request(self) -> None:
        """Note that an average of the step is not finite: the step will be skipped."""
        self._requested = True

    def request_unless(self, fine: bool | Tensor) -> None:
        """As request(), unless `fine`: a bool, or a tensor of one element."""
        if self.active and not fine:
            self.request()

    def restore(self) -> None:
        """Restore the residuals of begin(), and keep the copies."""
        for key in self._saved:
            residual, copy = self._copies[key]
            residual.copy_(copy)

    def apply(self) -> None:
        if self._requested:
            self.restore()

    def release(self) -> None:
        """Call before residuals change or move outside of save(): apply(), and forget()."""
        self.apply()
        self.forget()

    def forget_unsaved(self) -> None:
        """Drop the copies of earlier steps: some of these residuals move. This step's copies stay."""
        with self._lock:
            self._copies = {key: self._copies[key] for key in self._saved}

    def forget(self) -> None:
        """Drop all copies: the residuals were moved or replaced. The rest of the step begins here."""
        self._saved.clear()
        self._copies.clear()
