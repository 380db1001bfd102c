"""Visits to a server, and the rate of the path to it."""

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from byteps_thc._base.wire.layout import HEADER_BYTES
from byteps_thc._cli.quantities import show_bandwidth, show_seconds
from byteps_thc._scheme.adding.server_codes import ServerCodes

if TYPE_CHECKING:  # compiled modules may not load
    from byteps_thc._native import _comm
    from byteps_thc._net.session import Session

_MEASURED_S = 1.3
#: Before, the session finds the rate, and repeats the packets that the queue dropped: round trips, least and most time.
_WARM_UP_ROUND_TRIPS, _LEAST_WARM_UP_S, _MOST_WARM_UP_S = 20, 0.7, 3.0
_CONNECT_S, _OPERATION_S = 3.0, 10.0
_SAMPLE_S = 0.05
#: Codes of a push: enough for a few milliseconds at 10 Gb/s, in a few megabytes of memory.
_PUSH_CODES = 1 << 21
_IN_FLIGHT = 2


@dataclass(frozen=True)
class Visit:
    """How to join a server as the only worker of a job that no training has.

    server: host (IPv6 in brackets), port. key_file: None: THC_KEY_FILE. job: None: random.
    """

    server: tuple[str, int]
    key_file: str | None = None
    job: int | None = None

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.server[0]}:{self.server[1]}"

    def join(self, codes_per_packet: int | Literal["auto"], *, connect_s: float, operation_s: float) -> "Session":
        """Return a new session. Raises Session's errors."""
        from byteps_thc._net.session import Session, Timeouts

        return Session(
            [self.address],
            job=secrets.randbelow(1 << 15) + (1 << 15) if self.job is None else self.job,
            worker=0,
            workers=1,
            codes=ServerCodes(codes_per_packet=codes_per_packet),
            timeouts=Timeouts(connect_s=connect_s, operation_s=operation_s),
            key=self.key_file,
        )


@dataclass(frozen=True)
class Way:
    """The path to a server with codes and sums at the same time.

    up_bps, down_bps: bits per second of UDP payloads with codes that were summed, and with sums. round_trip_s: of the
    idle path. repeated: share of the packets sent while the rate was measured. window_bytes, loaded_s: in flight at
    most, and round trip, by congestion control at the end.
    """

    up_bps: float
    down_bps: float
    round_trip_s: float
    repeated: float
    datagram_bytes: int
    window_bytes: int
    loaded_s: float

    def describe(self) -> str:
        """Return the measured rates as a sentence."""
        return (
            f"{show_bandwidth(self.down_bps)} down with {show_bandwidth(self.up_bps)} up, {self.repeated:.1%} of "
            f"packets repeated, {show_seconds(self.round_trip_s)} of round trip, {show_seconds(self.loaded_s)} under "
            f"load with {self.window_bytes / 1e3:.0f} kB in flight, datagrams of {self.datagram_bytes} bytes"
        )


def measure_way(visit: Visit, codes_per_packet: int, round_trip_s: float) -> Way:
    """Push codes for two seconds, or more on a long path, as the only worker of a job. Raises Session's errors."""
    with visit.join(codes_per_packet, connect_s=_CONNECT_S, operation_s=_OPERATION_S) as session:
        arrays = [PushArrays(session, _PUSH_CODES) for _ in range(_IN_FLIGHT)]
        operations = [each.push(session) for each in arrays]
        oldest = 0

        def push_for(seconds: float) -> None:
            nonlocal oldest
            end_s = time.perf_counter() + seconds
            while time.perf_counter() < end_s:
                if session.is_done(operations[oldest], _SAMPLE_S):
                    operations[oldest] = arrays[oldest].push(session)
                    oldest = (oldest + 1) % _IN_FLIGHT

        push_for(min(max(_LEAST_WARM_UP_S, _WARM_UP_ROUND_TRIPS * round_trip_s), _MOST_WARM_UP_S))
        begin_s, begin = time.perf_counter(), session.counters()
        push_for(_MEASURED_S)
        end_s, end = time.perf_counter(), session.counters()
        size, widths = session.codes_per_packet, (session.code_bits, session.value_bits)
        codes_bytes, sums_bytes = (HEADER_BYTES + size * bits // 8 for bits in widths)
    packets_per_s = (end["aggregate_received"] - begin["aggregate_received"]) / (end_s - begin_s)
    return Way(
        up_bps=packets_per_s * codes_bytes * 8,
        down_bps=packets_per_s * sums_bytes * 8,
        round_trip_s=round_trip_s,
        repeated=(end["retransmissions"] - begin["retransmissions"]) / max(1, end["codes_sent"] - begin["codes_sent"]),
        datagram_bytes=max(codes_bytes, sums_bytes),
        window_bytes=end["window_bytes"],
        loaded_s=end["smoothed_rtt_us"] / 1e6,
    )


class PushArrays:
    """Arrays for pushes of `count` codes, one after the other."""

    def __init__(self, session: "Session", count: int) -> None:
        self._codes = np.zeros(count * session.code_bits // 8, np.uint8)
        self._aggregate = session.new_aggregate(count)
        self._contributions = np.zeros(session.chunks(count), np.uint8)

    def push(self, session: "Session") -> "_comm.Operation":
        """Push zeros."""
        return session.push_codes(0, self._codes, self._aggregate, self._contributions)
