"""Residuals of quantization by parameter name, their rollback after a skipped step, and the engine that has them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._engine.engine import ParameterSlice
from byteps_thc._engine.engine_state import EngineState
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.saved_state import State, StateDict, require_size, residual_array
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._net.communicator import ExactSum, Followed

_CPU = torch.device("cpu")


def energy_of(residual: Tensor) -> float:
    return float(torch.linalg.vector_norm(residual, dtype=torch.float64)) ** 2


class Residuals:
    """Flat residuals of buffer layouts; a parameter that moves to another layout takes its residual along.

    DDP rebuilds its buckets after the first iteration, and a checkpoint may come from other buckets. Not thread-safe.
    rollback: given by engines that share it.
    """

    def __init__(self, device: torch.device = _CPU, rollback: "Rollback | None" = None) -> None:
        self.rollback = rollback or Rollback()
        self._device = device
        self._parts: dict[str, Tensor] = {}  # parameter -> its part of a flat residual, or a loaded residual
        self._placed: set[str] = set()  # parameters with a part of a flat residual

    def of(self, size: int, parameters: Sequence[ParameterSlice]) -> Tensor:
        """Return the flat residual, [size], of a new layout, to be read and written in place.

        Raises ConfigurationError, with nothing changed, if a parameter had another size before.
        """
        for parameter in parameters:
            if (known := self._parts.get(parameter.name)) is not None:
                require_size(parameter.name, len(known), parameter.size)
        names = {parameter.name for parameter in parameters}
        if names & self._placed:  # rare: the rest of a protected step begins in the new place
            self.rollback.release()
        flat = torch.zeros(size, device=self._device)
        for parameter in parameters:
            part = flat[parameter.start : parameter.stop]
            if parameter.name in self._parts:
                part[:] = self._parts[parameter.name]
            self._parts[parameter.name] = part
        self._placed |= names
        return flat

    def scale(self, factor: float) -> None:
        self.rollback.release()
        for part in self._parts.values():
            part *= float(np.float32(factor))

    def energy(self) -> float:
        return sum(map(energy_of, self._parts.values()))

    def state(self) -> dict[str, Tensor]:
        self.rollback.apply()
        return {name: part.to("cpu", copy=True) for name, part in self._parts.items()}

    def load(self, state: State) -> None:
        """Replace all residuals by copies of arrays or tensors; parameters without one begin at zero.

        Raises ConfigurationError, with nothing changed, unless all are finite 1-D float32 arrays or tensors of the
        sizes of known parameters.
        """
        arrays = {name: residual_array(name, value).copy() for name, value in state.items()}
        for name in arrays.keys() & self._placed:
            require_size(name, arrays[name].size, len(self._parts[name]))
        parts = {name: torch.from_numpy(array).to(self._device) for name, array in arrays.items()}
        self.rollback.release()
        self._placed.clear()
        self._parts = parts


class Rollback:
    """Copies residuals before they are overwritten, and restores them if an average was not finite.

    Does nothing before the first begin(). One thread calls save() for a residual, any thread request_unless(); all
    other calls need an engine with nothing in flight.
    """

    def __init__(self) -> None:
        self.active = False
        self._requested = False
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
        key = (residual.data_ptr(), tuple(residual.shape))
        if not self.active or key in self._saved:
            return
        both = self._copies.get(key) or (residual, torch.empty_like(residual))
        both[1].copy_(residual)
        self._copies[key] = both  # release() may have cleared them meanwhile, for a new layout
        self._saved.add(key)

    def request_unless(self, finite: bool) -> None:
        """Note that the step will be skipped, unless its averages are finite."""
        if self.active and not finite:
            self._requested = True

    def watched(self, exact: ExactSum) -> ExactSum:
        """Return sums that request a rollback if they are not finite."""

        def check(values: Tensor) -> None:
            if self.active:
                self.request_unless(bool(values.isfinite().all()))

        return lambda values: Followed(exact(values), partial(check, values))

    def restore(self) -> None:
        """Restore the residuals of begin(), and keep the copies."""
        for key in tuple(self._saved):
            residual, copy = self._copies[key]
            residual.copy_(copy)

    def apply(self) -> None:
        if self._requested:
            self.restore()

    def release(self) -> None:
        """Call before residuals change or move outside of save(): apply(), and begin the rest of the step here."""
        self.apply()
        self._saved.clear()
        self._copies.clear()


@dataclass(eq=False)
class AddingState(EngineState):
    """Counters, figures and residuals of one worker. Without error feedback no parameter has a residual."""

    residuals: Residuals = field(default_factory=Residuals)
    _measured_step: int = field(default=0, init=False)  # the step of the recorder's residuals
    _kept: ClassVar[tuple[str, ...]] = ("residuals",)

    @override
    def statistics(self) -> CompressionStats:
        """Return the figures. Measures the residuals, once a step, in a pass over all residuals."""
        if self._measured_step != self.steps:
            self._measured_step = self.steps
            self.recorder.add_quantization(coordinates=0, clamped=0, lost_energy=self.residuals.energy())
        return super().statistics()

    @override
    def _entries(self) -> StateDict:
        return {"residuals": self.residuals.state()}

    @override
    def _load_entries(self, state: State) -> None:
        self.residuals.load(state["residuals"])
        self._measured_step = -1  # the same number may now be another step


class AddingEngine(FlatEngine):
    """Averages over workers of servers. state: an AddingState."""

    _state: AddingState

    @override
    def protect_step(self) -> None:
        with self._between_steps("protect_step"):
            self._state.residuals.rollback.begin()

    @override
    def restore_residuals(self) -> None:
        with self._between_steps("restore_residuals"):
            self._state.residuals.rollback.restore()

    @override
    def scale_residuals(self, factor: float) -> None:
        with self._between_steps("scale_residuals"):
            self._state.residuals.scale(factor)
