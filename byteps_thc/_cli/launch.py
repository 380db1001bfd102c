"""Child processes that say when they are ready; thc-ps as one."""

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from byteps_thc._base.errors import ConfigurationError, TransportError

#: Start of the line on standard output of a thc-ps that listens, before IP:PORT.
READY_PREFIX = "thc-ps ready on "
#: Runs a command that is to end when this process is killed.
ENDS_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")
#: Environment of programs that are timed: glibc gives memory back each step, whose page faults take longer than a step.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}


def find_thc_ps() -> Path:
    """Path of thc-ps: $THC_PS, beside the running Python, or on PATH. Raises ConfigurationError if it is not found."""
    if given := os.environ.get("THC_PS"):
        if not os.access(given, os.X_OK):
            raise ConfigurationError(f"THC_PS={given!r} is not a program: set it to the path of thc-ps, or unset it")
        return Path(given)
    beside = Path(sys.executable).parent / "thc-ps"
    for candidate in (str(beside), shutil.which("thc-ps")):
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise ConfigurationError(
        "thc-ps is not installed here: run 'pip install .' in a clone of byteps_thc, install its "
        "wheel, or set THC_PS to the binary's path"
    )


def wait_for_line(process: subprocess.Popen[bytes], prefix: str, name: str, timeout_s: float) -> str | None:
    """Return the rest of the first line with this prefix, stripped; None if the output ends before.

    process: with bufsize=0, because select() sees no line in a buffer. name: for TransportError after timeout_s.
    """
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        line = process.stdout.readline().decode(errors="replace")
        if line.startswith(prefix):
            return line.removeprefix(prefix).strip()
        if not line:
            return None
    raise TransportError(f"{name} was not ready after {timeout_s:g} s: read its messages above")


class Child:
    """A child process that says when it is ready; a context manager, whose end is stop().

    name: in errors. ready: prefix of the line on standard output. stop_timeout_s: from SIGTERM to SIGKILL.
    """

    def __init__(
        self, command: Sequence[str], *, name: str, ready: str, start_timeout_s: float, stop_timeout_s: float
    ) -> None:
        self._name, self._ready = name, ready
        self._start_timeout_s, self._stop_timeout_s = start_timeout_s, stop_timeout_s
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)

    def wait_until_ready(self) -> str:
        """Rest of the line that it is ready with; TransportError when it ends before, or takes too long."""
        rest = wait_for_line(self.process, self._ready, self._name, self._start_timeout_s)
        if rest is None:
            code = self.process.wait(timeout=self._stop_timeout_s)
            raise TransportError(
                f"{self._name} ended with exit code {code} before it was ready; see its messages above"
            )
        return rest

    def stop(self) -> int:
        """End the process; returns its exit code (thc-ps: 0 after a clean drain). May be called again."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self._stop_timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ParameterServer(Child):
    """A thc-ps that listens, for demos, tests and benchmarks; TransportError if it does not in time.

    arguments: further command-line options of thc-ps. prefix: command that runs it, such as setpriv with options.
    """

    def __init__(
        self,
        arguments: Sequence[str] = (),
        *,
        prefix: Sequence[str] = (),
        ip: str = "127.0.0.1",
        port: int = 0,
        start_timeout_s: float = 15.0,
        stop_timeout_s: float = 5.0,
    ) -> None:
        super().__init__(
            [*prefix, str(find_thc_ps()), "--listen", ip, "--port", str(port), *arguments],
            name="thc-ps",
            ready=READY_PREFIX,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
        )
        try:
            #: "IP:PORT" it listens on
            self.address = self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
