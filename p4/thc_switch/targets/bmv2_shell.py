"""A persistent simple_switch_CLI process: starting one takes as long as thousands of its commands."""

import contextlib
import os
import queue
import re
import subprocess
import threading
import weakref
from collections.abc import Sequence
from typing import IO

from byteps_thc._base.errors import TransportError

_TIMEOUT_S = 120.0
_PROMPT = "RuntimeCmd: "
_FAILURE = re.compile(r"Error|Invalid|\*\*\* |Could not|Unknown")
#: An invalid command: its error message shows that all earlier commands are done.
_END = "end_of_batch"
_END_LINE = f"*** Unknown syntax: {_END}"


class Bmv2Shell:
    """Runs commands in one process, started on demand, which ends when the object is garbage."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def run(self, commands: Sequence[str]) -> str:
        """Run commands; return their output. TransportError for the first that fails, or without a switch."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write("".join(f"{command}\n" for command in (*commands, _END)))
            process.stdin.flush()
        except BrokenPipeError:
            pass  # its last output has the reason
        output: list[str] = []
        while (line := self._next_line(output)) != _END_LINE:
            output.append(line)
        failure = next((line for line in output if _FAILURE.match(line)), None)
        if failure:
            raise TransportError(failure)
        return "\n".join(output)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._lines = queue.SimpleQueue()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
            assert self._process.stdout is not None
            threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
            weakref.finalize(self, _end, self._process)
        return self._process

    def _next_line(self, output: Sequence[str]) -> str:
        try:
            line = self._lines.get(timeout=_TIMEOUT_S)
        except queue.Empty:
            raise TransportError(f"simple_switch_CLI did not answer within {_TIMEOUT_S:g} s") from None
        if line is None:
            process, self._process = self._process, None
            assert process is not None
            _end(process)
            raise TransportError("; ".join(line for line in output if line)[-500:] or "simple_switch_CLI ended")
        return line.rpartition(_PROMPT)[2].rstrip("\n")


def _read(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Read output as it comes, so that the process never blocks; None ends it."""
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.kill()
    process.wait()
