"""Findings of checks."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class State(enum.Enum):
    """State of a checked part."""

    OK = "ok"
    """it works"""
    OPTIONAL = "optional"
    """it is not there, and needed only for what the finding says"""
    MISSING = "missing"
    """it is not there, and byteps_thc does not work without it"""
    PROBLEM = "problem"
    """it is there, and does not work or slows things down"""


@dataclass(frozen=True)
class Finding:
    """A check's answer. meaning: for users. command: the remedy, for a shell. required: a problem fails thc doctor."""

    check: str
    state: State
    meaning: str
    command: str = ""
    required: bool = False

    @property
    def fails(self) -> bool:
        """Whether `thc doctor` ends with exit code 1 for it."""
        return self.state is State.MISSING or (self.state is State.PROBLEM and self.required)


#: Returns within seconds, whatever the state of the host. run_check shows its exception as a problem.
Check = Callable[[], Sequence[Finding]]


def run_check(check: Check) -> Sequence[Finding]:
    """Return a check's findings; an exception is a finding too, so that the other checks are shown."""
    try:
        return check()
    except Exception as error:  # a host's faults must not hide the rest
        name = getattr(check, "__name__", "check").removeprefix("check_").replace("_", " ")
        return [Finding(name, State.PROBLEM, f"the check itself failed: {type(error).__name__}: {error}")]
