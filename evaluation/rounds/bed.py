"""Hosts, links, servers and workers of measured rounds, and the clock."""

import contextlib
import json
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO

from byteps_thc._cli.launch import KEEP_MEMORY, ParameterServer
from rounds.process import SOCKET
from rounds.schemes import PLACEMENTS, THC, WORKERS
from thc_lab.fork_server import ForkedProcess, start_program
from thc_lab.shaped_network import ShapedNetwork, inside, tcp_rate

PROGRAM = Path(__file__).with_name("process.py")
STAGES = ("compress", "up", "server", "down", "decompress")
_ANSWER_S = 300.0
_TCP_RATE_S = 1.0


@dataclass(frozen=True)
class Round:
    """ms: by stage, and "round", which is their sum. For THC "up" is all of up, server and down, which overlap.

    bytes_in, bytes_out: of frames, on the link of the (first) server's host. server_ms: processor time of all servers
    together: "cpu" of the processes, and decoding servers' by kind of work (ServerTimes).
    """

    ms: dict[str, float]
    bytes_in: int
    bytes_out: int
    server_ms: dict[str, float]


class Processes:
    """Processes of process.py by name; a context manager, which ends them."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(self._folder / SOCKET))
        self._listener.listen(3 * WORKERS)
        self._listener.settimeout(_ANSWER_S)
        self._connections: dict[str, socket.socket] = {}
        self._lines: dict[str, TextIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, namespace: str = "") -> None:
        process = start_program(
            PROGRAM, str(self._folder), name, namespace,
            environment=os.environ, log=self._log(name), before_import=KEEP_MEMORY,
        )  # fmt: skip
        self._stack.callback(_end, process)
        connection, _ = self._listener.accept()
        self._stack.enter_context(connection)
        connection.settimeout(_ANSWER_S)
        self._connections[name], self._lines[name] = connection, connection.makefile()
        assert json.loads(self._lines[name].readline()) == name

    def ask(self, names: list[str], do: str, **arguments: Any) -> list[Any]:
        """Command all processes, then return their answers. RuntimeError, with its log, for one that has failed."""
        self.tell(names, do, **arguments)
        return self.answers(names)

    def tell(self, names: list[str], do: str, **arguments: Any) -> None:
        message = json.dumps({"do": do, **arguments}) + "\n"
        for name in names:
            self._connections[name].sendall(message.encode())

    def answers(self, names: list[str]) -> list[Any]:
        answers = []
        for name in names:
            line = self._lines[name].readline()
            if not line:
                raise RuntimeError(f"{name} has failed:\n{self._log(name).read_text(errors='replace')}")
            answers.append(json.loads(line))
        return answers

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


class RoundBed:
    """A placement (schemes.PLACEMENTS) on hosts of its own; a context manager. Needs root."""

    def __init__(self, placement: str) -> None:
        servers = PLACEMENTS[placement]
        self._stack = contextlib.ExitStack()
        self._number = 0
        try:
            self._network = self._stack.enter_context(ShapedNetwork(WORKERS + (servers == 1)))
            self._hosts = self._network.hosts
            self._server_hosts = self._hosts[-1:] if servers == 1 else self._hosts
            self._thc_ps = []
            for host in self._server_hosts:
                with inside(host.namespace):
                    self._thc_ps.append(self._stack.enter_context(ParameterServer(ip=host.ip)))
            self._processes = self._stack.enter_context(Processes())
            self._servers = [f"server {i}" for i in range(servers)]
            self._workers = [f"worker {i}" for i in range(WORKERS)]
            self._connect()
        except BaseException:
            self._stack.close()
            raise

    def _connect(self) -> None:
        processes, ports = self._processes, []
        for name, host in zip(self._servers, self._server_hosts, strict=True):
            processes.start(name, host.namespace)
            ports += processes.ask([name], "listen", ip=host.ip)
        for name, host in zip(self._workers, self._hosts, strict=False):
            processes.start(name, host.namespace)
        addresses = [(host.ip, port) for host, port in zip(self._server_hosts, ports, strict=True)]
        processes.tell(self._servers, "accept", servers=len(self._servers))
        processes.ask(self._workers, "connect", servers=addresses, thc=[server.address for server in self._thc_ps])
        processes.answers(self._servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def shape(self, gbit: float) -> float:
        """Let every link carry that much in each direction; return one TCP stream's rate, Gb/s."""
        for host in self._hosts:
            host.shape(gbit * 1e9)
        return tcp_rate([(self._hosts[0], self._hosts[1])], _TCP_RATE_S) / 1e9

    def round(self, scheme: str) -> Round:
        """One round from a common start. RuntimeError when workers have different averages."""
        self._number += 1
        link = self._server_hosts[0]
        went_in, went_out, cpu_s = link.received(), link.sent(), self._thc_ps_cpu_s()
        servers = [] if scheme == THC else self._servers
        names = [*servers, *self._workers]
        answers = self._processes.ask(names, "round", scheme=scheme, number=self._number)
        of_servers, of_workers = answers[: len(servers)], answers[len(servers) :]
        if len({(one["sum"], one["energy"]) for one in of_workers}) != 1:
            raise RuntimeError(f"the averages of {scheme} differ between workers")
        thc_ps_cpu_s = self._thc_ps_cpu_s() - cpu_s
        return Round(
            stages_ms(of_workers, of_servers),
            (link.received() - went_in).bytes,
            (link.sent() - went_out).bytes,
            {key: seconds * 1e3 for key, seconds in seconds_of(of_servers, thc_ps_cpu_s).items()},
        )

    def _thc_ps_cpu_s(self) -> float:
        """Processor time of all thc-ps."""
        tasks = [task for server in self._thc_ps for task in Path(f"/proc/{server.process.pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def seconds_of(servers: list[dict[str, float]], thc_ps_s: float) -> dict[str, float]:
    """Processor time of decoding servers together, by kind of work; without any, thc-ps's."""
    if not servers:
        return {"cpu": thc_ps_s}
    return {key.removesuffix("_s"): sum(one[key] for one in servers) for key in servers[0] if key.endswith("_s")}


def stages_ms(workers: list[dict[str, float]], servers: list[dict[str, float]]) -> dict[str, float]:
    """Cut a round where the last worker, or the last server, has reached the next stage. servers: none: not known."""
    start, done = min(one["start"] for one in workers), max(one["done"] for one in workers)
    last = max(workers, key=lambda one: one["encoded"])
    # A worker that encodes nothing is at once at the next stage, however late the machine lets it start.
    encoded = last["encoded"] - last["waited_s"] if last["encoded"] > last["start"] else start
    received = max(one["received"] for one in workers)
    cuts = [max(one["last"] for one in servers), max(one["reply"] for one in servers)] if servers else [received] * 2
    times = [start, encoded, *cuts, received, done]
    ms = {stage: (times[i + 1] - times[i]) * 1e3 for i, stage in enumerate(STAGES)}
    return ms | {"round": (done - start) * 1e3}


def _end(process: ForkedProcess) -> None:
    process.kill()
    process.wait(_ANSWER_S)
