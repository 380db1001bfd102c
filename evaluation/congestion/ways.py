"""Bytes of the fastest average, and their least time."""

from collections.abc import Sequence

from byteps_thc._base.wire.layout import HEADER_BYTES, SWITCH_CODES_PER_PACKET
from byteps_thc._scheme.adding.server_codes import ServerCodes

#: Ethernet, IP and UDP, as a token bucket counts them.
FRAME_HEADER_BYTES = 14 + 20 + 8
#: Norms, codes and the end of the last sum.
ROUND_TRIPS = 3


def packet_frames(parameters: int, workers: int, codes_per_packet: int) -> tuple[float, float]:
    """Bytes of the codes of a worker, and of the sums for one worker, in frames."""
    resolved = ServerCodes().resolve(workers)
    packets = parameters / codes_per_packet
    headers = HEADER_BYTES + FRAME_HEADER_BYTES
    up, down = (
        packets * (codes_per_packet * bits / 8 + headers) for bits in (resolved.table.bits, resolved.value_bits)
    )
    return up, down


def ideal_s(
    parameters: int,
    worker_bits_per_s: Sequence[float],
    *,
    colocated: bool,
    server_bits_per_s: float = 0.0,
    round_trip_s: float = 0.0,
    codes_per_packet: int = SWITCH_CODES_PER_PACKET,
) -> float:
    """Bytes over the busiest link and three round trips: no average takes less.

    worker_bits_per_s: rate of each worker's link, the same both ways. colocated: a server on each worker's host, or
    one behind a link of server_bits_per_s.
    """
    workers = len(worker_bits_per_s)
    up, down = packet_frames(parameters, workers, codes_per_packet)
    if colocated:
        others = (workers - 1) / workers  # a host's own server needs no link
        busiest_s = max(others * (up + down) * 8 / rate for rate in worker_bits_per_s)
    else:
        busiest_s = max(
            workers * max(up, down) * 8 / server_bits_per_s, *(max(up, down) * 8 / rate for rate in worker_bits_per_s)
        )
    return busiest_s + ROUND_TRIPS * round_trip_s


def bf16_ideal_s(parameters: int, worker_bits_per_s: Sequence[float], round_trip_s: float = 0.0) -> float:
    """Ideal of a ring all-reduce with 2 bytes a parameter, without headers: 2 (n - 1) rounds of half a round trip."""
    workers = len(worker_bits_per_s)
    sent_bytes = 2 * (workers - 1) / workers * 2 * parameters
    return sent_bytes * 8 / min(worker_bits_per_s) + (workers - 1) * round_trip_s
