"""How much the way to a server carries, and how long averages take over it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from byteps_thc._cli.doctor.visit import Visit
from byteps_thc._cli.quantities import show_bandwidth, show_parameters, show_seconds
from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.wire.layout import Header

if TYPE_CHECKING:  # compiled modules may not load
    from byteps_thc._native import _comm
    from byteps_thc._net.session import Session

_MEASURED_S = 1.3
#: Before that the session finds out what the way carries, and repeats what the queue dropped at last: so many round
#: trips, of at least and at most these times.
_WARM_UP_ROUND_TRIPS, _LEAST_WARM_UP_S, _MOST_WARM_UP_S = 20, 0.7, 3.0
_CONNECT_S, _OPERATION_S = 3.0, 10.0
_SAMPLE_S = 0.05
#: Codes of a push: enough for a few milliseconds at 10 Gb/s, in a few megabytes of memory.
_PUSH_CODES = 1 << 21
_IN_FLIGHT = 2
#: The example that is given.
_PARAMETERS, _WORKERS = 100_000_000, 4


@dataclass(frozen=True)
class Way:
    """The way to a server with codes and sums on it at the same time.

    up_bps, down_bps: bits per second of UDP payloads that were sums in the end, and of these sums. round_trip_s: on the
    idle way. repeated: share of the packets sent, by when the rate is known.
    """

    up_bps: float
    down_bps: float
    round_trip_s: float
    repeated: float
    datagram_bytes: int

    def describe(self) -> str:
        """Say what was measured and what follows for averages."""
        round_trip = show_seconds(self.round_trip_s)
        return (
            f"{show_bandwidth(self.down_bps)} down with {show_bandwidth(self.up_bps)} up, {round_trip} of round trip, "
            f"{self.repeated:.1%} of packets repeated, datagrams of {self.datagram_bytes} bytes. {self._estimate()}"
        )

    def _estimate(self) -> str:
        resolved = ThcConfig().resolve(_WORKERS)
        bits, value_bits = resolved.config.code_bits, resolved.value_bits
        others = (_WORKERS - 1) / _WORKERS
        rate_bps = max(self.up_bps, self.down_bps)  # both directions are taken to carry as much

        def seconds(link_bits: float) -> str:
            return show_seconds(_PARAMETERS * link_bits / rate_bps)

        # The workers share the link of the one server; four servers are busy as ranks that sum are.
        one = seconds(_WORKERS * max(bits, value_bits))
        colocated, bf16 = seconds(others * (bits + value_bits)), seconds(others * 2 * 16)
        return (
            f"If every host's link carries that, an average of {show_parameters(_PARAMETERS)} parameters of {_WORKERS} "
            f"workers takes about {one} with one server, {colocated} with a server on each worker's host, "
            f"{bf16} in bf16 by ring all-reduce"
        )


def measure_way(visit: Visit, codes_per_packet: int, round_trip_s: float) -> Way:
    """Push codes for two seconds, or more on a long way, as the only worker of a job. Raises what Session raises.

    round_trip_s: of a packet on the idle way.
    """
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
        size = session.codes_per_packet
        codes_bytes, sums_bytes = (
            Header.SIZE_BYTES + size * bits // 8 for bits in (session.code_bits, session.value_bits)
        )
    packets_per_s = (end["aggregate_received"] - begin["aggregate_received"]) / (end_s - begin_s)
    return Way(
        up_bps=packets_per_s * codes_bytes * 8,
        down_bps=packets_per_s * sums_bytes * 8,
        round_trip_s=round_trip_s,
        repeated=(end["retransmissions"] - begin["retransmissions"]) / max(1, end["codes_sent"] - begin["codes_sent"]),
        datagram_bytes=max(codes_bytes, sums_bytes),
    )


class PushArrays:
    """Of pushes of so many codes, one after the other."""

    def __init__(self, session: Session, count: int) -> None:
        self._codes = np.zeros(count * session.code_bits // 8, np.uint8)
        self._aggregate = session.new_aggregate(count)
        self._contributions = np.zeros(session.chunks(count), np.uint8)

    def push(self, session: Session) -> _comm.Operation:
        """Push zeros."""
        return session.push_codes(0, self._codes, self._aggregate, self._contributions)
