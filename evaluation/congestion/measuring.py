"""Measures a row: THC with servers, and the other ways to average, on the same links."""

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from byteps_thc._cli.launch import ParameterServer
from congestion.rows import CROWD_EACH, CROWD_HOSTS, RANKS, Row
from congestion.tcp import FRAME_BYTES_PER_BYTE, TcpStream
from congestion.workers import Host, Steps, Workers
from thc_lab.namespaces import inside

#: Steps on unshaped links, for the processors' time.
_UNSHAPED_STEPS = 3
_CLOSE_S = 30.0


class Network(Protocol):
    """Hosts on links that can be shaped: shaped_rows.py and relayed_rows.py."""

    hosts: Sequence[Host]

    def shape(self, row: Row) -> None:
        """Give the links the rates, queues, delays and losses of a row."""

    def unshape(self) -> None:
        """Let the links carry as much as the processors can."""

    def drops(self) -> int:
        """Packets that found a queue full so far."""

    def sent_bytes(self, host: int) -> int:
        """Bytes that a host has put on its link so far."""


@dataclass
class Measured:
    """A scheme in a row. Seconds; alone_s: the median step on links that are not shaped, None if not measured."""

    scheme: str
    ideal_s: float | None
    steps: Steps = field(default_factory=Steps)
    drops: int = 0
    alone_s: float | None = None
    tcp_share: float | None = None
    """of the link that is busiest, which a TCP stream had during the steps"""
    thc_share: float | None = None
    failure: str = ""

    @property
    def later_s(self) -> list[float]:
        """The steps after the first."""
        return self.steps.seconds[1:]

    @property
    def median_s(self) -> float | None:
        """The median without the first step."""
        return statistics.median(self.later_s) if self.later_s else None

    @property
    def worst_s(self) -> float | None:
        """The longest step but the first."""
        return max(self.later_s, default=None)

    @property
    def ratio(self) -> float | None:
        """The median over the ideal."""
        return None if self.median_s is None or self.ideal_s is None else self.median_s / self.ideal_s


def measure(
    row: Row, scheme: str, network: Network, workers: Workers, steps: int, limit_s: float, *, alone: bool = True
) -> Measured:
    """Average `steps` times and once more before. limit_s: of a step. A step that fails ends up in `failure`; the
    workers are of no use any more then.
    """
    measured = Measured(scheme, row.ideal_s(scheme))
    with _servers(row if scheme == "thc_ps" else None, network.hosts) as servers:
        network.shape(row)
        before = network.drops()
        try:
            name = "bf16" if scheme == "bf16" else "thc"
            measured.steps = workers.open(name, servers, row.parameters, limit_s)
            if row.beside_tcp:
                _beside_tcp(row, measured, network, workers, steps, limit_s)
            else:
                _average(measured.steps, workers, steps + 1, limit_s)
            measured.drops = network.drops() - before
            if alone:
                shaped, measured.steps = measured.steps, Steps()
                network.unshape()
                _average(measured.steps, workers, _UNSHAPED_STEPS + 1, limit_s)
                measured.alone_s = measured.median_s
                measured.steps = shaped
            workers.close(_CLOSE_S)
        except (TimeoutError, ConnectionError) as error:
            measured.drops = network.drops() - before
            measured.failure = f"{error or type(error).__name__} after {len(measured.steps.seconds)} steps"
            workers.kill()
    return measured


@contextlib.contextmanager
def running_workers(row: Row, network: Network, folder: Path) -> Iterator[Workers]:
    """The workers that a row asks for."""
    hosts, each = (CROWD_HOSTS, CROWD_EACH) if row.crowd else (RANKS, None)
    with Workers(network.hosts[:hosts], folder, each) as workers:
        yield workers


def _average(steps: Steps, workers: Workers, count: int, limit_s: float) -> None:
    for _ in range(count):
        workers.average(steps, limit_s)


def _beside_tcp(row: Row, measured: Measured, network: Network, workers: Workers, count: int, limit_s: float) -> None:
    """The stream is on the link that THC needs most: from the server, or from a host that has one, to a worker."""
    sender = 0 if row.colocated else len(network.hosts) - 1
    receiver = 1 if row.colocated else 0
    tcp_bytes, all_bytes = 0.0, 0
    with TcpStream(network.hosts[sender], network.hosts[receiver]) as stream:
        workers.average(measured.steps, limit_s)
        for _ in range(count):
            tcp, sent = stream.received_bytes, network.sent_bytes(sender)
            workers.average(measured.steps, limit_s)
            tcp_bytes += (stream.received_bytes - tcp) * FRAME_BYTES_PER_BYTE
            all_bytes += network.sent_bytes(sender) - sent
    carried = row.bits_per_s / 8 * sum(measured.later_s)
    measured.tcp_share = tcp_bytes / carried
    measured.thc_share = (all_bytes - tcp_bytes) / carried


@contextlib.contextmanager
def _servers(row: Row | None, hosts: Sequence[Host]) -> Iterator[list[str] | None]:
    """Start the servers of a row: their addresses. None: the ranks sum."""
    if row is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        addresses = []
        for host in hosts[:-1] if row.colocated else hosts[-1:]:
            with inside(host.namespace):
                server = ParameterServer(["--log-level", "warning"], ip=host.ip)
            addresses.append(stack.enter_context(server).address)
        yield addresses
