"""The state that an engine keeps between steps and saves in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from byteps_thc._engine.residuals import Residuals, Rollback
from byteps_thc._engine.saved_state import VERSION, State, StateDict, require_as_saved, require_sound, sealed
from byteps_thc._engine.statistics import CompressionStats, StatsRecorder
from byteps_thc._scheme.errors import ConfigurationError

_COUNTERS = ("round", "step")
_END = 1 << 32  # of the counters, 32-bit keys


class EngineState:
    """Counters, residuals and figures of one worker. Only the recorder and rollback.request() are thread-safe.

    config: plain values. residuals: None: none are kept. recorder, rollback: given by engines that share them.
    """

    def __init__(
        self,
        worker: int,
        workers: int,
        config: Mapping[str, object],
        *,
        residuals: Residuals | None = None,
        recorder: StatsRecorder | None = None,
        rollback: Rollback | None = None,
    ) -> None:
        self.worker, self.workers = worker, workers
        self._identity: dict[str, object] = {
            "version": VERSION,
            "worker": worker,
            "workers": workers,
            "config": dict(config),
        }
        self.residuals = residuals
        self.recorder = recorder or StatsRecorder()
        self.rollback = rollback or Rollback()
        #: optimizer steps begun
        self.steps = 0
        #: gradients begun: the random key, never used twice
        self.round = 0
        self._measured_step = 0  # the step of the recorder's residuals

    @property
    def step(self) -> int:
        return max(self.steps - 1, 0)

    def start_step(self) -> None:
        self.steps += 1
        self.recorder.step_began()

    def next_round(self) -> int:
        taken, self.round = self.round, (self.round + 1) % _END
        return taken

    def scale(self, factor: float) -> None:
        self.rollback.release()
        if self.residuals is not None:
            self.residuals.scale(factor)

    def statistics(self) -> CompressionStats:
        """Return the figures. Measures the residuals, once a step: a pass over all of them."""
        if self.residuals is not None and self._measured_step != self.steps:
            self._measured_step = self.steps
            self.recorder.add_quantization(coordinates=0, clamped=0, lost_energy=self.residuals.energy())
        return self.recorder.snapshot()

    def state_dict(self) -> StateDict:
        self.rollback.apply()
        state = self._identity | {"round": self.round, "step": self.steps}
        if self.residuals is not None:
            state["residuals"] = self.residuals.state()
        return sealed(state)

    def load_state_dict(self, state: State) -> None:
        self._require_fitting(state)
        if self.residuals is not None:
            self.residuals.require_sizes(state["residuals"])
            self.residuals.load(state["residuals"])
        self.rollback.forget()
        self.round, self.steps = state["round"], state["step"]
        self._measured_step = -1  # the same number may now be another step

    def _require_fitting(self, state: State) -> None:
        if not isinstance(state, Mapping):
            raise ConfigurationError(f"the state is a {type(state).__name__}: pass the result of state_dict()")
        if self.residuals is None and state.get("residuals", {}) != {}:
            raise ConfigurationError(
                "state does not fit: it has residuals, and this compression keeps none: "
                "byteps_thc.checkpoint.load() reads steps and rounds of such checkpoints, or start without the state"
            )
        needed = (*self._identity, *_COUNTERS, *(() if self.residuals is None else ("residuals",)))
        missing = [key for key in needed if key not in state]
        if missing:
            raise ConfigurationError(f"the state lacks {', '.join(missing)}: pass the whole result of state_dict()")
        for key, value in self._identity.items():
            theirs = state[key]
            if key == "config":
                theirs, value = _compared(theirs), _compared(value)
            if theirs != value:
                remedy = _OF_ONE_RANK if key == "worker" else ""
                raise ConfigurationError(f"state does not fit: {_difference(key, theirs, value)}{remedy}")
        for key in _COUNTERS:
            if type(state[key]) is not int or not 0 <= state[key] < _END:
                raise ConfigurationError(
                    f"state is damaged: its {key} is {state[key]!r}, not a count; load the checkpoint again, or an "
                    "earlier one"
                )
        require_sound(state)
        require_as_saved(state)


_OF_ONE_RANK = (
    ". Every rank has a state of its own; where a framework saves that of one rank only, give it "
    "byteps_thc.checkpoint.gathered(state)"
)


def _compared(settings: object) -> object:
    """Return the settings that averages depend on: packet sizes are not among them."""
    if not isinstance(settings, Mapping):
        return settings
    return {name: setting for name, setting in settings.items() if name != "codes_per_packet"}


def _difference(key: str, theirs: object, value: object) -> str:
    """Describe the entry of a state that differs here; of settings, only the differing ones."""
    if not isinstance(theirs, Mapping) or not isinstance(value, Mapping):
        return f"its {key} is {theirs!r}, here it is {value!r}"
    given, here = ({name: repr(setting) for name, setting in settings.items()} for settings in (theirs, value))
    names = [name for name in {**given, **here} if given.get(name) != here.get(name)]
    of = [f"{name} {given.get(name, 'missing')}, here {here.get(name, 'missing')}" for name in names]
    return f"its {key} has {'; '.join(of)}: use the same settings"
