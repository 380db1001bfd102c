"""Checks of a server: joins it with a job of its own, measures the round trip, the packets that the path takes and its
rate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Literal

from byteps_thc.config import ThcConfig
from byteps_thc.errors import ConfigurationError, DeadlineError, ThcError, TransportError
from byteps_thc.tools.doctor.finding import Finding, State
from byteps_thc.tools.doctor.hello import Answer, NoAnswerError, random_job, say_hello
from byteps_thc.tools.doctor.processes import why_not_loaded
from byteps_thc.tools.doctor.way import PushArrays, measure_way
from byteps_thc.wire.layout import (
    MIN_CODES_PER_PACKET,
    SWITCH_CODES_PER_PACKET,
    ConfigField,
    ErrorReason,
    Header,
)

_ANSWER_S = 3.0
_CONNECT_S = 3.0
_OPERATION_S = 2.0
_ROUND_TRIPS = 50
#: Fewer round trips on a long way: no more are begun after this time.
_ROUND_TRIPS_S = 0.5
#: Tried when the largest packet that the kernel thinks possible does not come back.
_SMALLER_PACKETS = (8192, 4096, 2048, SWITCH_CODES_PER_PACKET, MIN_CODES_PER_PACKET)


def parse_server(text: str) -> tuple[str, int]:
    """Read HOST[:PORT] and look the host up as a Session does; ConfigurationError when there is no such server."""
    if why_not_loaded("_comm"):
        raise ConfigurationError("--server: byteps_thc._comm does not load; run thc doctor without --server")
    from byteps_thc import _comm  # here: compiled modules may not load

    try:
        ip, _, port = _comm.resolve_server(text, lookup_s=_CONNECT_S).partition(":")
    except ThcError as error:
        raise ConfigurationError(f"--server: {error}") from error
    return ip, int(port)


def check_servers(servers: Sequence[tuple[str, int]]) -> Sequence[Finding]:
    """Check one server after the other: at the same time, they would share what this host's link carries."""
    return [finding for server in servers for finding in check_server(server)]


def check_server(server: tuple[str, int]) -> Sequence[Finding]:
    """Whether a server answers HELLO, how large packets may be, and how much the way carries."""
    name = f"server {server[0]}:{server[1]}"
    mend = f"thc-ps --port {server[1]}    # there; and open UDP port {server[1]} in firewalls, both ways"
    try:
        answer = say_hello(server, deadline_s=_ANSWER_S)
    except (NoAnswerError, OSError) as error:
        return [Finding(name, State.PROBLEM, f"does not answer HELLO: {error}", mend, required=True)]
    if answer.refusal is not None:
        return [_refused(name, answer, answer.refusal)]
    return [Finding(name, State.OK, f"answers HELLO in {_us(answer.round_trip_s)}"), *_check_path(server)]


def _refused(name: str, answer: Answer, refusal: ErrorReason) -> Finding:
    said = refusal.name.lower()
    if refusal is ErrorReason.TOO_MANY_JOBS:
        return Finding(name, State.PROBLEM, "takes no more jobs", "thc-ps --max-jobs 64    # there", required=True)
    if refusal is ErrorReason.DRAINING:
        return Finding(name, State.PROBLEM, "is shutting down", "thc-ps    # there", required=True)
    if answer.field is ConfigField.CODES_PER_PACKET:
        meaning = f"its way back takes no packets of {SWITCH_CODES_PER_PACKET} codes, the default: its MTU is too small"
        mend = "ip link set DEVICE mtu 1500    # there, or ThcConfig(codes_per_packet=...) on all workers"
        return Finding(name, State.PROBLEM, meaning, mend, required=True)
    meaning = f"answers in {_us(answer.round_trip_s)}, and lets no unknown job in ({said}), as a switch does"
    return Finding(name, State.OK, meaning)


def _check_path(server: tuple[str, int]) -> Sequence[Finding]:
    name = f"path to {server[0]}:{server[1]}"
    if why_not_loaded("_comm"):
        return [Finding(name, State.PROBLEM, "cannot be measured: byteps_thc._comm does not load", required=True)]
    largest = _try_packets(server, "auto")
    if largest.round_trips_s:
        return [Finding(name, State.OK, largest.describe()), _check_way(server, largest)]
    for codes in (size for size in _SMALLER_PACKETS if size < largest.codes_per_packet):
        smaller = _try_packets(server, codes)
        if smaller.round_trips_s:
            meaning = (
                f"packets of {largest.codes_per_packet} codes, which this host's route to it takes, do not come "
                f"back ({largest.error}); the MTU differs on the way. {smaller.describe()}"
            )
            fits_default = codes >= SWITCH_CODES_PER_PACKET
            mend = f"ThcConfig(codes_per_packet={codes}) on all workers, or the same MTU everywhere"
            path = Finding(name, State.PROBLEM, meaning, mend, required=not fits_default)
            return [path, _check_way(server, smaller)]
    return [Finding(name, State.PROBLEM, f"no packet of codes comes back: {largest.error}", required=True)]


def _check_way(server: tuple[str, int], packets: _PacketTest) -> Finding:
    """How much the way carries in packets that have come back."""
    name, address = f"way to {server[0]}:{server[1]}", f"{server[0]}:{server[1]}"
    config = ThcConfig(codes_per_packet=packets.codes_per_packet)
    try:
        way = measure_way(address, random_job(), config, min(packets.round_trips_s))
    except (DeadlineError, TransportError) as error:  # refused, or shutting down meanwhile
        return Finding(name, State.PROBLEM, f"cannot be measured: {error}", required=True)
    return Finding(name, State.OK, way.describe())


class _PacketTest:
    """How packets of that many codes did."""

    def __init__(self, codes_per_packet: int, round_trips_s: Sequence[float], error: str = "") -> None:
        self.codes_per_packet = codes_per_packet
        self.round_trips_s = round_trips_s
        self.error = error

    def describe(self) -> str:
        datagram_bytes = Header.SIZE_BYTES + self.codes_per_packet
        return (
            f"{self.codes_per_packet} codes a packet (datagrams of {datagram_bytes} bytes down) are summed and back in "
            f"{_us(statistics.median(self.round_trips_s))}, the median of {len(self.round_trips_s)}; fastest "
            f"{_us(min(self.round_trips_s))}"
        )


def _try_packets(server: tuple[str, int], codes_per_packet: int | Literal["auto"]) -> _PacketTest:
    from byteps_thc.transport.session import Session, Timeouts  # here: compiled modules may not load

    config = ThcConfig(codes_per_packet=codes_per_packet)
    timeouts = Timeouts(connect_s=_CONNECT_S, operation_s=_OPERATION_S)
    address = f"{server[0]}:{server[1]}"
    size = 0 if isinstance(codes_per_packet, str) else codes_per_packet
    times_s: list[float] = []
    try:
        with Session([address], job=random_job(), worker=0, workers=1, config=config, timeouts=timeouts) as session:
            size = session.codes_per_packet
            arrays = PushArrays(session, size)
            end = time.perf_counter() + _ROUND_TRIPS_S
            while len(times_s) < _ROUND_TRIPS and (start := time.perf_counter()) < end:
                session.wait(arrays.push(session))
                times_s.append(time.perf_counter() - start)
    except (DeadlineError, TransportError) as error:  # refused, or shutting down meanwhile
        return _PacketTest(size, [], str(error))
    return _PacketTest(size, times_s)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
