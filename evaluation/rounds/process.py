"""A worker, a decoding server or the parts alone, commanded over a Unix socket: one line of JSON for another.

Started by bed.py: process.py FOLDER NAME NAMESPACE; FOLDER has the socket.
"""

import contextlib
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from byteps_thc._net.session import Session
from rounds import parts
from rounds.decoding_server import TIMEOUT_S, DecodingServer, tune
from rounds.schemes import SCHEMES, THC, THC_CONFIG, WORKERS, gradient_of
from rounds.worker import CodecRounds, DenseRounds, Rounds, ThcRounds
from thc_lab.namespaces import inside

SOCKET = "socket"
#: A process hears nothing for so long only if its commander has gone.
_PATIENCE_S = 300.0
Answers = dict[str, Callable[..., Any]]


class Server:
    """A decoding server on its host."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.answers: Answers = {"listen": self.listen, "accept": self.accept, "round": self.round}

    def listen(self, ip: str) -> int:
        self._listener = socket.create_server((ip, 0), backlog=WORKERS)
        self._listener.settimeout(TIMEOUT_S)
        port: int = self._listener.getsockname()[1]
        return port

    def accept(self, servers: int) -> None:
        connections: dict[int, socket.socket] = {}
        for _ in range(WORKERS):
            connection, _ = self._listener.accept()
            tune(connection)
            connections[connection.recv(1)[0]] = connection
        ordered = [connections[worker] for worker in range(WORKERS)]
        self._servers = {
            name: DecodingServer(scheme, self._index, servers, ordered) for name, scheme in SCHEMES.items()
        }

    def round(self, scheme: str, number: int) -> dict[str, float]:
        return asdict(self._servers[scheme].serve(number))


class Worker:
    """A worker on its host."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.answers: Answers = {"connect": self.connect, "round": self.round}

    def connect(self, servers: list[tuple[str, int]], thc: list[str]) -> None:
        connections = []
        for address in servers:
            connections.append(socket.create_connection(tuple(address), timeout=TIMEOUT_S))
            tune(connections[-1])
            connections[-1].sendall(bytes([self._index]))
        gradient = gradient_of(self._index)
        session = Session(thc, job=1, worker=self._index, workers=WORKERS, codes=THC_CONFIG)
        self._session = session
        self._rounds: dict[str, Rounds] = {THC: ThcRounds(gradient, session, len(servers))}
        for name, scheme in SCHEMES.items():
            if scheme.config is None:
                self._rounds[name] = DenseRounds(gradient, connections, self._index)
            else:
                self._rounds[name] = CodecRounds(scheme, scheme.config, gradient, connections, self._index)

    def round(self, scheme: str, number: int) -> dict[str, float]:
        """Add sums that show whether all workers have the same average."""
        rounds = self._rounds[scheme]
        times = rounds.run(number)
        rounds.keep()
        average = rounds.average
        return asdict(times) | {
            "sum": float(average.double().sum()),
            "energy": float(average.double().square().sum()),
        }


def main(folder: str, name: str, namespace: str) -> None:
    torch.set_num_threads(1)
    role, _, index = name.partition(" ")
    network = inside(namespace) if namespace else contextlib.nullcontext()
    with network, socket.socket(socket.AF_UNIX) as bed:
        bed.settimeout(_PATIENCE_S)
        bed.connect(str(Path(folder) / SOCKET))
        make = {"server": Server, "worker": Worker}.get(role)
        answers = {"measure": parts.measured} if make is None else make(int(index)).answers
        bed.sendall(f"{json.dumps(name)}\n".encode())
        for line in bed.makefile():
            arguments = json.loads(line)
            answer = partial(answers[arguments.pop("do")], **arguments)
            bed.sendall(f"{json.dumps(answer())}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
