"""What quantization lost of every parameter, by parameter name, wherever the parameter lies at the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byteps_thc.engines.buffers import ParameterSlice
from byteps_thc.errors import ConfigurationError


@dataclass
class _Home:
    """The residual of a buffer layout, and the parameters that have theirs in it."""

    flat: Tensor
    missing: set[str]
    present: set[str]


class Residuals:
    """Flat residuals of buffer layouts; parameters that turn up in another layout take theirs along.

    DDP rebuilds its buckets after the first iteration, and a checkpoint may come from other buckets. A parameter may
    have several slices in a buffer (FSDP's shards); its residual is all of them in that order. Not thread-safe.
    """

    def __init__(self) -> None:
        self._homes: dict[str, _Home] = {}
        self._home_of: dict[str, str] = {}  # parameter -> layout
        self._parts: dict[str, list[Tensor]] = {}  # parameter -> its parts of a flat residual, or what was loaded

    def of(self, key: str, size: int, parameters: Sequence[ParameterSlice]) -> Tensor:
        """Return the flat residual, float32[size], of a layout, to be read and written in place.

        It stays the same tensor until all its parameters have moved to other layouts, or load(). ConfigurationError
        when a parameter had another size before.
        """
        home = self._homes.get(key)
        if home is None:
            home = _Home(torch.zeros(size), {parameter.name for parameter in parameters}, set())
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
                part.mul_(factor)

    def energy(self) -> float:
        """Return the squared Euclidean norm of all of them together."""
        return sum(float(torch.dot(part, part)) for parts in self._parts.values() for part in parts)

    def state(self) -> dict[str, Tensor]:
        """Return copies by parameter name, float32, 1-D."""
        return {name: torch.cat(parts) for name, parts in self._parts.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Replace all residuals by copies of these; parameters without one begin at zero.

        Raises ConfigurationError when one is not a finite 1-D float32 tensor; then nothing has changed.
        """
        for name, residual in state.items():
            if not _is_residual(residual):
                raise ConfigurationError(f"residual of {name!r} is not a finite 1-D float32 tensor")
        self._homes.clear()
        self._home_of.clear()
        self._parts = {name: [residual.detach().cpu().clone()] for name, residual in state.items()}

    def _check_sizes(self, slices: Mapping[str, Sequence[ParameterSlice]]) -> None:
        for name, parts in slices.items():
            size = sum(part.size for part in parts)
            known = sum(part.numel() for part in self._parts.get(name, ()))
            if name in self._parts and known != size:
                raise ConfigurationError(
                    f"the residual of parameter {name!r} has {known} elements and its gradient {size}: is the "
                    "checkpoint of another model, or were parameters counted in another order (ThcState(model=...))?"
                )

    def _move(self, name: str, parts: list[Tensor], key: str) -> None:
        if name in self._parts:
            residual = torch.cat(self._parts[name])
            for part, values in zip(parts, torch.split(residual, [part.numel() for part in parts]), strict=True):
                part.copy_(values)
        else:
            for part in parts:
                part.zero_()
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


def _is_residual(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dtype == torch.float32
        and value.dim() == 1
        and bool(torch.isfinite(value).all())
    )
