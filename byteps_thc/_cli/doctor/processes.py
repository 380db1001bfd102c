"""Commands and probes in child processes that end by a deadline."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from subprocess import DEVNULL, PIPE
from typing import Any

from byteps_thc._base.errors import ThcError

_AFTER_KILL_S = 5.0
_LOAD_DEADLINE_S = 60.0


class ProbeError(ThcError):
    """A probe did not answer: it crashed, or the deadline ended it."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a command. code: exit code; None: the deadline ended it."""

    code: int | None
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """The exit code, and the last line of its messages."""
        how = "no answer in time" if self.code is None else f"exit code {self.code}"
        lines = [line.strip() for line in (self.errors or self.output).splitlines() if line.strip()]
        return f"{how}: {lines[-1]}" if lines else how


def run_command(command: Sequence[str], deadline_s: float) -> Outcome:
    """Run a command in a new session; end its processes by the deadline. Exit code 127: not found."""
    try:
        process = subprocess.Popen(
            command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, errors="replace", start_new_session=True
        )
    except OSError as error:
        return Outcome(127, "", str(error))
    try:
        output, errors = process.communicate(timeout=deadline_s)
        return Outcome(process.returncode, output, errors)
    except subprocess.TimeoutExpired:
        return Outcome(None, "", "")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and its children
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_AFTER_KILL_S)


@functools.cache
def why_not_loaded(module: str) -> str:
    """Return why a compiled module does not load, or has another version; "": neither. A child process tries it."""
    imports = f"from byteps_thc._native import {module}; from byteps_thc._base.built import check_arithmetic"
    program = f"{imports}; check_arithmetic({module})"
    outcome = run_command([sys.executable, "-P", "-c", program], _LOAD_DEADLINE_S)
    return "" if outcome.code == 0 else outcome.reason


def run_probe(name: str, deadline_s: float) -> dict[str, Any]:
    """Run a probe (probes.py) in another Python and return its answer. Raises ProbeError."""
    outcome = run_command([sys.executable, "-P", "-m", "byteps_thc._cli.doctor.probes", name], deadline_s)
    answer = answer_in(outcome.output)
    if outcome.code != 0 or answer is None:
        raise ProbeError(outcome.reason)
    return answer


def answer_in(output: str) -> dict[str, Any] | None:
    """Return a probe's answer: its last line of JSON. C libraries write buffered text before and after the answer."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    return None
