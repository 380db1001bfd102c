"""Programs of workers are told over a Unix socket when to average, so that no message of ours is on the links.

A line of JSON is a command, another one its answer. All hosts are namespaces of one machine and share its clock
(time.monotonic()): a command names the time to begin at, an answer the time of the end.
"""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: A command or its answer.
Words = dict[str, Any]

_CONNECT_S = 60.0


def serve(path: Path, number: int, commands: dict[str, Callable[[Words], Words]]) -> None:
    """Carry out commands until their end. number: the program's."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        with connection.makefile("rw", encoding="utf-8") as lines:
            _write(lines, {"number": number})
            for line in lines:
                words = json.loads(line)
                _write(lines, commands[words.pop("command")](words))


def wait_until(begin_s: float) -> None:
    """Return at that time of time.monotonic()."""
    while (left_s := begin_s - time.monotonic()) > 0:
        time.sleep(left_s)


class Controls:
    """The programs' end of the sockets. path: of the socket that they connect to."""

    def __init__(self, path: Path, programs: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(programs)
        self._listener.settimeout(_CONNECT_S)
        self._programs = programs
        self._connections: dict[int, tuple[socket.socket, Any]] = {}

    def accept(self) -> None:
        """Wait for all programs. Raises TimeoutError if one does not connect."""
        while len(self._connections) < self._programs:
            connection, _ = self._listener.accept()
            connection.settimeout(_CONNECT_S)
            lines = connection.makefile("rw", encoding="utf-8")
            self._connections[json.loads(lines.readline())["number"]] = connection, lines

    def ask(self, command: str, timeout_s: float, **words: object) -> list[Words]:
        """Give all programs a command; their answers. TimeoutError; ConnectionError when a program has ended."""
        deadline = time.monotonic() + timeout_s
        for _, lines in self._connections.values():
            _write(lines, {"command": command, **words})
        answers: list[Words] = []
        for number in range(self._programs):
            connection, lines = self._connections[number]
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            if not (line := lines.readline()):
                raise ConnectionError(f"worker program {number} has ended; its log says why")
            answers.append(json.loads(line))
        return answers

    def close(self) -> None:
        """End the conversation, which ends the programs."""
        self._listener.close()
        for connection, lines in self._connections.values():
            connection.shutdown(socket.SHUT_RDWR)
            lines.close()
            connection.close()


def _write(lines: Any, words: Words) -> None:
    lines.write(json.dumps(words) + "\n")
    lines.flush()
