"""This machine as a host, or a network namespace of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence

from byteps_thc.errors import TransportError
from thc_lab.testbed.hosts.host import Host, Outcome
from thc_lab.testbed.hosts.namespaces import command_inside, is_there

#: A line of JSON, with a line of a log in it.
LINE_LIMIT_BYTES = 1 << 20
#: A command that has closed its output is about to end.
_AFTER_OUTPUT_S = 10.0


class LocalHost(Host):
    """Commands become children of this process. namespace: that they run in; None: this process's own."""

    def __init__(self, name: str, python: str, namespace: str | None = None) -> None:
        self.name = name
        self.python = python
        self._namespace = namespace
        self._prefix = [] if namespace is None else command_inside(namespace)

    async def run(self, argv: Sequence[str], *, text: str = "", timeout_s: float) -> Outcome:
        """See Host."""
        process = await self._start(argv)
        try:
            output, errors = await asyncio.wait_for(process.communicate(text.encode()), timeout_s)
        except TimeoutError:
            raise TransportError(f"{self.name}: `{' '.join(argv)}` did not end within {timeout_s:g} s") from None
        finally:
            await _end(process)
        assert process.returncode is not None
        return Outcome(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))

    async def stream(self, argv: Sequence[str], *, text: str) -> AsyncIterator[str]:
        """See Host."""
        process = await self._start(argv)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(text.encode())
            await process.stdin.drain()
            while line := await process.stdout.readline():
                yield line.decode(errors="replace").rstrip("\n")
            await asyncio.wait_for(process.wait(), _AFTER_OUTPUT_S)
        finally:
            await _end(process)

    async def close(self) -> None:
        """See Host."""

    async def _start(self, argv: Sequence[str]) -> asyncio.subprocess.Process:
        if self._namespace is not None and not is_there(self._namespace):
            raise TransportError(f"host {self.name} is not there (network namespace {self._namespace}): thc testbed up")
        try:
            return await asyncio.create_subprocess_exec(
                *self._prefix,
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LINE_LIMIT_BYTES,
                start_new_session=True,  # Ctrl-C is for this process
            )
        except OSError as error:
            raise TransportError(f"{self.name}: {argv[0]} cannot be started: {error.strerror}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it, with what it has started, and wait until its pipes are closed: nothing is left for a closed loop."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # another user's: by sudo
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):  # a daemon of its may have them
        await asyncio.wait_for(process.communicate(), _AFTER_OUTPUT_S)
