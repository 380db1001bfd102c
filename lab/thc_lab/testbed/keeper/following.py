"""The output of kept processes, line by line, until they end."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

from thc_lab.testbed.keeper.records import Records, state_of

_POLL_S = 0.1
#: Longer lines come in pieces. As JSON a piece may take six times that, which hosts/local.py has to take as one line.
MAX_LINE_BYTES = 64 << 10


class Follower:
    """Reads the log of one process, from its beginning."""

    def __init__(self, records: Records, name: str) -> None:
        self._records = records
        self._name = name
        self._offset = 0
        self._rest = b""

    def lines(self, *, last: bool = False) -> Iterator[str]:
        """Lines that have come meanwhile; last: also one without its end."""
        try:
            with self._records.log(self._name).open("rb") as log:
                log.seek(self._offset)
                got = log.read()
        except FileNotFoundError:
            got = b""
        self._offset += len(got)
        *whole, rest = (self._rest + got).split(b"\n")
        pieces = [piece for line in whole for piece in _pieces(line)]
        *cut, self._rest = _pieces(rest)
        pieces += cut
        if last and self._rest:
            pieces.append(self._rest)
            self._rest = b""
        for piece in pieces:
            yield piece.decode(errors="replace").rstrip("\r")

    def end(self) -> dict[str, Any] | None:
        """How the process ended; None: not yet."""
        record = self._records.read(self._name)
        state = "lost" if record is None else state_of(record, self._records)
        if state == "running":
            return None
        return {"name": self._name, "ended": self._records.status(self._name)}


def watch(records: Records, names: list[str], *, follow: bool, last_lines: int | None) -> Iterator[dict[str, Any]]:
    """{"name", "line"} for each line, {"name", "ended": exit status or None} for each end.

    Ends after the last process, when follow is false with the lines there are, and when standard input is closed: then
    nobody listens any more. last_lines: of those that are there at the start, only so many of each; None: all.
    """
    followers = {name: Follower(records, name) for name in names}
    for name, follower in followers.items():
        lines = list(follower.lines(last=not follow))
        for line in lines if last_lines is None else lines[len(lines) - min(last_lines, len(lines)) :]:
            yield {"name": name, "line": line}
    while follow and followers:
        for name, follower in list(followers.items()):
            end = follower.end()  # before the lines: what it wrote until then is there
            for line in follower.lines(last=end is not None):
                yield {"name": name, "line": line}
            if end is not None:
                yield end
                del followers[name]
        if followers and _listener_is_gone():
            return


def wait_ready(records: Records, name: str, pattern: str, timeout_s: float) -> dict[str, Any]:
    """{"ready": True} when a line of the log matches; else {"ready": False}, with "ended" if the process has ended."""
    follower = Follower(records, name)
    wanted = re.compile(pattern)
    deadline = time.monotonic() + timeout_s
    while True:
        end = follower.end()
        if any(wanted.search(line) for line in follower.lines(last=end is not None)):
            return {"ready": True}
        if end is not None:
            return {"ready": False, "ended": end["ended"]}
        if time.monotonic() > deadline:
            return {"ready": False}
        time.sleep(_POLL_S)


def tail(records: Records, name: str, count: int) -> list[str]:
    """The last lines of a log."""
    return list(Follower(records, name).lines(last=True))[-count:]


def _pieces(line: bytes) -> list[bytes]:
    """One at least, which is empty when the line is."""
    return [line[begin : begin + MAX_LINE_BYTES] for begin in range(0, max(1, len(line)), MAX_LINE_BYTES)]


def _listener_is_gone() -> bool:
    """Wait a moment; whether standard input was closed meanwhile."""
    if not select.select([sys.stdin], [], [], _POLL_S)[0]:
        return False
    return not os.read(sys.stdin.fileno(), 1)
