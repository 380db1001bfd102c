"""Checks of a server: joins it, and measures the round trip, the largest packets and the rate of the path."""

import bisect
import functools
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from byteps_thc._base.errors import ConfigurationError, DeadlineError, ThcError, TransportError
from byteps_thc._base.wire.layout import HEADER_BYTES, MIN_CODES_PER_PACKET, SWITCH_CODES_PER_PACKET
from byteps_thc._cli.doctor.finding import Finding, State
from byteps_thc._cli.doctor.processes import why_not_loaded
from byteps_thc._cli.doctor.way import PushArrays, Visit, measure_way
from byteps_thc._cli.quantities import show_seconds

_CONNECT_S, _OPERATION_S = 3.0, 2.0
#: More than the round trip of an ICMP message.
_REJECTED_S = 1.0
_ROUND_TRIPS = 50
#: Fewer round trips on a long way: no more are begun after this time.
_ROUND_TRIPS_S = 0.5
#: Tried when the largest packet that the kernel thinks possible does not come back.
_SMALLER_PACKETS = (*range(MIN_CODES_PER_PACKET, SWITCH_CODES_PER_PACKET + 1, MIN_CODES_PER_PACKET), 2048, 4096, 8192)


def parse_server(text: str) -> tuple[str, int]:
    """Read HOST[:PORT] and look the host up as a Session does; ConfigurationError without such a server."""
    if why_not_loaded("_comm"):
        raise ConfigurationError("--server: byteps_thc._native._comm does not load; run thc doctor without --server")
    from byteps_thc._native import _comm  # here: compiled modules may not load
    from byteps_thc._net.network_settings import split_port

    try:
        port = _comm.resolve_server(text, lookup_s=_CONNECT_S).rpartition(":")[2]
    except ThcError as error:
        raise ConfigurationError(f"--server: {error}") from error
    return split_port(text)[0], int(port)


def check_servers(visits: Sequence[Visit]) -> Sequence[Finding]:
    """Check one server after the other: at the same time, they would share the capacity of this host's link."""
    return [finding for visit in visits for finding in check_server(visit)]


def check_server(visit: Visit) -> Sequence[Finding]:
    """Whether a server lets a worker in, with the largest packets and the bandwidth of the way."""
    name, port = f"server {visit.address}", visit.server[1]
    try:
        largest = _try_packets(visit, "auto")
    except ConfigurationError as error:  # of the key file
        mend = "(umask 077; thc key > FILE)    # the same file on the servers" if "thc key" in str(error) else ""
        if "none for job" in str(error):
            mend = f"thc doctor --server {visit.address} --key-file FILE --job JOB    # a job that no training has now"
        return [Finding(name, State.PROBLEM, f"cannot be asked: {error}", mend, required=True)]
    if largest.codes_per_packet:
        return [Finding(name, State.OK, "answers HELLO"), *_check_path(visit, largest)]
    if "there is no such job" in largest.error:
        return [Finding(name, State.OK, "answers, and lets no unknown job in, as a switch does")]
    if largest.refused:
        return [Finding(name, State.PROBLEM, largest.error, required=True)]
    rejected = _why_rejected(visit.server)
    mend = f"thc-ps --port {port}    # there; and open UDP port {port} in firewalls, both ways"
    if not rejected:
        mend += ". A thc-ps with keys answers nobody without one: --key-file FILE"
    return [Finding(name, State.PROBLEM, rejected or largest.error, mend, required=True)]


def _why_rejected(server: tuple[str, int]) -> str:
    """Return the network's error for a packet to a closed port; empty: no error."""
    for family, kind, _, _, address in socket.getaddrinfo(server[0].strip("[]"), server[1], type=socket.SOCK_DGRAM):
        with socket.socket(family, kind) as asking:
            asking.settimeout(_REJECTED_S)
            try:
                asking.connect(address)  # the kernel hands ICMP errors to sockets that are connected
                asking.send(b"?")
                asking.recv(1)
            except ConnectionRefusedError:
                return "nothing listens on that port there, or a firewall rejects packets to it"
            except TimeoutError:
                continue
            except OSError as error:
                return f"the network has no path to it: {error.strerror}"
    return ""


def _check_path(visit: Visit, largest: "_PacketTest") -> Sequence[Finding]:
    name = f"path to {visit.address}"
    if largest.round_trips_s:
        return [Finding(name, State.OK, largest.describe()), _check_way(visit, largest)]
    smaller = _largest_that_passes(visit, largest.codes_per_packet)
    if smaller is None:
        return [Finding(name, State.PROBLEM, f"no packet of codes comes back: {largest.error}", required=True)]
    codes = smaller.codes_per_packet
    meaning = (
        f"packets of {largest.codes_per_packet} codes, which this host's route to it takes, do not come "
        f"back ({largest.error}); the MTU differs along the path. {smaller.describe()}"
    )
    mend = f"THC_CONFIG=codes_per_packet={codes}    # on all workers, or the same MTU everywhere"
    path = Finding(name, State.PROBLEM, meaning, mend, required=codes < SWITCH_CODES_PER_PACKET)
    return [path, _check_way(visit, smaller)]


def _largest_that_passes(visit: Visit, limit: int) -> "_PacketTest | None":
    """Return the largest packets below `limit` codes that come back; None: none do."""
    sizes = [codes for codes in _SMALLER_PACKETS if codes < limit]
    tried = functools.cache(lambda codes: _try_packets(visit, codes))
    passing = bisect.bisect_left(sizes, True, key=lambda codes: not tried(codes).round_trips_s)
    return tried(sizes[passing - 1]) if passing else None


def _check_way(visit: Visit, packets: "_PacketTest") -> Finding:
    """Measure the rate in packets of a size that has passed."""
    name = f"link to {visit.address}"
    try:
        way = measure_way(visit, packets.codes_per_packet, min(packets.round_trips_s))
        return Finding(name, State.OK, way.describe())
    except (DeadlineError, TransportError) as error:  # refused, or shutting down meanwhile
        return Finding(name, State.PROBLEM, f"cannot be measured: {error}", required=True)


@dataclass(frozen=True)
class _PacketTest:
    """Result of packets of a size. codes_per_packet: 0: not joined. refused: the server gave a reason."""

    codes_per_packet: int
    round_trips_s: Sequence[float]
    error: str = ""
    refused: bool = False

    def describe(self) -> str:
        datagram_bytes = HEADER_BYTES + self.codes_per_packet
        return (
            f"{self.codes_per_packet} codes a packet (datagrams of {datagram_bytes} bytes down) are summed and back in "
            f"{show_seconds(statistics.median(self.round_trips_s))}, the median of {len(self.round_trips_s)}; fastest "
            f"{show_seconds(min(self.round_trips_s))}"
        )


def _try_packets(visit: Visit, codes_per_packet: int | Literal["auto"]) -> _PacketTest:
    size = 0
    times_s: list[float] = []
    try:
        with visit.join(codes_per_packet, connect_s=_CONNECT_S, operation_s=_OPERATION_S) as session:
            size = session.codes_per_packet
            arrays = PushArrays(session, size)
            end = time.perf_counter() + _ROUND_TRIPS_S
            while len(times_s) < _ROUND_TRIPS and (start := time.perf_counter()) < end:
                session.wait(arrays.push(session))
                times_s.append(time.perf_counter() - start)
    except (DeadlineError, TransportError) as error:  # refused, or shutting down meanwhile
        return _PacketTest(size, [], str(error), refused=isinstance(error, TransportError))
    return _PacketTest(size, times_s)
