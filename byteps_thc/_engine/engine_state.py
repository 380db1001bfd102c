"""The state that an engine keeps between steps and saves in checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.saved_state import VERSION, State, StateDict, require_as_saved, require_sound, sealed
from byteps_thc._engine.statistics import CompressionStats, StatsRecorder

_COUNTERS = ("round", "step")
_END = 1 << 32  # of the counters, 32-bit keys


@dataclass(eq=False)
class EngineState:
    """Counters and figures of one worker. Only the recorder is thread-safe.

    config: plain values. recorder: given by engines that share it.
    """

    worker: int
    workers: int
    config: Mapping[str, object]
    recorder: StatsRecorder = field(default_factory=StatsRecorder)
    steps: int = field(default=0, init=False)  # optimizer steps begun
    round: int = field(default=0, init=False)  # gradients begun: the random key, never used twice
    #: entries of a state besides counters and identity
    _kept: ClassVar[tuple[str, ...]] = ()

    @property
    def _identity(self) -> StateDict:
        return {"version": VERSION, "worker": self.worker, "workers": self.workers, "config": dict(self.config)}

    @property
    def step(self) -> int:
        return max(self.steps - 1, 0)

    def start_step(self) -> None:
        self.steps += 1
        self.recorder.step_began()

    def next_round(self) -> int:
        taken, self.round = self.round, (self.round + 1) % _END
        return taken

    def statistics(self) -> CompressionStats:
        return self.recorder.snapshot()

    def state_dict(self) -> StateDict:
        return sealed(self._identity | {"round": self.round, "step": self.steps} | self._entries())

    def load_state_dict(self, state: State) -> None:
        self._require_fitting(state)
        self._load_entries(state)
        self.round, self.steps = state["round"], state["step"]

    def _entries(self) -> StateDict:
        return {}

    def _load_entries(self, state: State) -> None:
        """Load all of `_kept`. Raises ConfigurationError, with nothing changed, if it does not fit."""

    def _require_fitting(self, state: State) -> None:
        if not isinstance(state, Mapping):
            raise ConfigurationError(f"the state is a {type(state).__name__}: pass the result of state_dict()")
        if "residuals" not in self._kept and state.get("residuals", {}) != {}:
            raise ConfigurationError(
                "state does not fit: it has residuals, and this compression keeps none: "
                "byteps_thc.checkpoint.load() reads steps and rounds of such checkpoints, or start without the state"
            )
        needed = (*self._identity, *_COUNTERS, *self._kept)
        if missing := [key for key in needed if key not in state]:
            raise ConfigurationError(f"the state lacks {', '.join(missing)}: pass the whole result of state_dict()")
        for key, value in self._identity.items():
            theirs = state[key]
            if key == "config":
                theirs, value = _compared(theirs), _compared(value)
            if theirs != value:
                remedy = _REMEDIES.get(key, "")
                raise ConfigurationError(f"state does not fit: {_difference(key, theirs, value)}{remedy}")
        for key in _COUNTERS:
            if type(state[key]) is not int or not 0 <= state[key] < _END:
                raise ConfigurationError(
                    f"state is damaged: its {key} is {state[key]!r}, not a count; load the checkpoint again, or an "
                    "earlier one"
                )
        require_sound(state)
        require_as_saved(state)


_REMEDIES = {
    "version": ": start without the state, or load it with the byteps_thc that saved it",
    "worker": ". Every rank has a state of its own; where a framework saves that of one rank only, give it "
    "byteps_thc.checkpoint.gathered(state)",
}


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
