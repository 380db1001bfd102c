"""One process of a BytePS job, with everything that it starts."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class JobProcess:
    """A command in a process group of its own, with its output in a file. Raises OSError when it cannot be started."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name, self._log, self._killed = name, log, False
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """Its output and its children's so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error, of its own and not by kill."""
        return not self._killed and self.status not in (None, 0)

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended; subprocess.TimeoutExpired when it has not in time."""
        self._process.wait(max(timeout_s, 0))

    def kill(self) -> None:
        """End the whole group at once, with children that the group's leader left behind."""
        self._killed = True
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()
