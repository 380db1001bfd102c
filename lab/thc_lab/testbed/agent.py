"""Starts the processes of a testbed on one host for one session, and ends all of them with the session.

`python3 -c` runs the text of this file there. It needs the standard library alone. Requests and answers are lines
of JSON on standard input and output:

    {"id": 1, "do": "start", ...} -> {"id": 1, "result": ...} or {"id": 1, "error": "why"}
    a line of a process's output  -> {"name": "worker0", "line": "step 1"}
    its end                       -> {"name": "worker0", "status": 0}, negative for a signal

The session ends with standard input. Nothing is left then: no process, daemons in sessions of their own included, and
no run folder.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: Time between SIGTERM and SIGKILL.
GRACE_S = 5.0
#: For a process's last lines, in case a daemon keeps its output open.
_LAST_LINES_S = 1.0
#: A plan's word for the folder of the run on this host, which others cannot enter.
RUN_FOLDER = "@run@"
_PR_SET_CHILD_SUBREAPER = 36
_LINE_LIMIT_BYTES = 1 << 22
#: Settings of byteps_thc and BytePS. This process's own must not reach processes whose plan lacks them.
_PLANNED_PREFIXES = ("THC_", "BYTEPS_", "DMLC_", "PS_")


class Agent:
    """One session. at_end: commands to run when it has ended all processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at_end: list[list[str]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Answer requests until the session ends, and end everything."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_LINE_LIMIT_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, reader.feed_eof)
        while line := await reader.readline():
            self._spawn(self._answer(json.loads(line)))
        await self._end()

    async def _answer(self, request: dict[str, Any]) -> None:
        number, do = request.pop("id"), request.pop("do")
        handlers: dict[str, Callable[..., Awaitable[Any]]]
        handlers = {"start": self._start, "put": self._put, "read": self._read, "probe": self._probe}
        try:
            result = await handlers[do](**request)
            _say(id=number, result=result)
        except OSError as error:
            _say(id=number, error=str(error))

    async def _start(self, name: str, argv: list[str], environment: dict[str, str], cwd: str | None) -> None:
        own = {key: value for key, value in os.environ.items() if not key.startswith(_PLANNED_PREFIXES)}
        planned = {key: self._placed(value) for key, value in environment.items()}
        process = subprocess.Popen(
            # Should this process be killed.
            ["setpriv", "--pdeathsig", "KILL", *map(self._placed, argv)],
            env=own | {"PATH": _search_path()} | planned,
            cwd=cwd or self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes.append(process)
        self._spawn(self._follow(name, process))

    async def _follow(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Report a process's output, and its end."""
        lines = asyncio.ensure_future(_report_lines(name, process))
        # asyncio's own processes end with the last that has their output.
        ended, pidfd = asyncio.Event(), os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(pidfd, ended.set)
        await ended.wait()
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        status = process.wait()
        _kill(process)  # leftovers in its process group
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(lines, _LAST_LINES_S)
        _say(name=name, status=status)

    async def _put(self, files: list[dict[str, Any]], at_end: list[list[str]]) -> None:
        """Make files in the run folder; a file without text is a folder. at_end: commands to run in the end."""
        self._at_end += at_end
        for file in files:
            path = Path(self._placed(file["path"]))
            if file["text"] is None:
                path.mkdir(mode=0o700)
            else:
                path.write_text(file["text"], encoding="utf-8")

    async def _read(self, path: str) -> str:
        return Path(self._placed(path)).read_text(encoding="utf-8")

    async def _probe(self, programs: list[str], listens: list[str]) -> dict[str, Any]:
        """Versions, which programs are missing, and which addresses ("udp:IP:PORT") cannot be bound, with why."""
        return {
            "versions": {name: _version(name) for name in ("byteps_thc", "byteps", "thc_p4_model")},
            "missing_programs": [program for program in programs if shutil.which(program, path=_search_path()) is None],
            "refused_addresses": [f"{text}: {why}" for text in listens if (why := _refusal(text))],
        }

    def _placed(self, text: str) -> str:
        return text.replace(RUN_FOLDER, str(self._folder))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        for process in self._processes:
            _kill(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while _descendants():
                    await asyncio.sleep(0.05)
        while left := _descendants():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
        for command in self._at_end:
            subprocess.run(command, check=False, capture_output=True)


def _search_path() -> str:
    """Return where processes find programs: first beside this Python."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


async def _report_lines(name: str, process: subprocess.Popen[bytes]) -> None:
    reader = asyncio.StreamReader(_LINE_LIMIT_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    while line := await reader.readline():
        _say(name=name, line=line.decode(errors="replace").rstrip("\n"))


def _say(**event: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # standard input ends, too
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def _kill(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Signal a process's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _descendants() -> list[int]:
    """Live processes below this one; orphans are its children, as it is their subreaper."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(entry.name)] = int(parent)
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below and pid not in below}:
        below |= more
    return sorted(below - {os.getpid()})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _refusal(text: str) -> str:
    kind, _, address = text.partition(":")
    ip, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as probing:
        if kind == "tcp":
            probing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probing.bind((ip, int(port)))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def main() -> None:
    """Serve one session."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("prctl(PR_SET_CHILD_SUBREAPER) failed")
    with tempfile.TemporaryDirectory(prefix="thc-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        asyncio.run(Agent(Path(folder)).serve())


if __name__ == "__main__":
    main()
