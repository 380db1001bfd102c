"""The rows of the target table: links, workers, servers, numbers of parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from congestion.ways import bf16_ideal_s, ideal_s

RANKS = 4
CROWD_HOSTS, CROWD_EACH = 8, 8

Placement = Literal["one", "four"]


@dataclass(frozen=True)
class Row:
    """Links of `bits_per_s` both ways with a queue of queue_bytes at each end."""

    name: str
    placement: Placement
    """one server on a host of its own, or four, one on each worker's host"""
    parameters: int
    bits_per_s: float
    queue_bytes: int
    target: float | None = 1.25
    """largest median over the ideal"""
    slow_bits_per_s: float | None = None
    """the last worker's link, if it is another one"""
    round_trip_s: float = 0.0
    loss: float = 0.0
    """share of frames that the network loses at random"""
    beside_tcp: bool = False
    crowd: bool = False
    """many small workers instead of four ranks"""

    @property
    def colocated(self) -> bool:
        """Whether each worker's host has a server."""
        return self.placement == "four"

    @property
    def relayed(self) -> bool:
        """Whether the network is one with delay and loss."""
        return bool(self.round_trip_s or self.loss)

    def rates(self) -> list[float]:
        """Rates of the workers' links."""
        if self.crowd:
            return [self.bits_per_s / CROWD_EACH] * (CROWD_HOSTS * CROWD_EACH)
        return [self.bits_per_s] * (RANKS - 1) + [self.slow_bits_per_s or self.bits_per_s]

    def ideal_s(self, scheme: str) -> float | None:
        """See ways.py; None where the ranks sum in THC's codes."""
        if scheme == "bf16":
            return bf16_ideal_s(self.parameters, self.rates(), self.round_trip_s)
        if scheme != "thc_ps":
            return None
        return ideal_s(
            self.parameters,
            self.rates(),
            colocated=self.colocated,
            server_bits_per_s=self.bits_per_s,
            round_trip_s=self.round_trip_s,
        )


def _queues(bits_per_s: float) -> dict[str, int]:
    return {"100k": 100_000, "512k": 512 << 10, "100ms": int(bits_per_s / 8 * 0.1)}


def all_rows() -> Sequence[Row]:
    """Rows in the order of the table."""
    placements: tuple[Placement, Placement] = ("one", "four")
    rows = [
        Row(f"{rate}-{queue}-{placement}", placement, parameters, bits_per_s, queue_bytes)
        for rate, bits_per_s, parameters in (("100M", 100e6, 4_000_000), ("1G", 1e9, 16_000_000))
        for queue, queue_bytes in _queues(bits_per_s).items()
        for placement in placements
    ]
    # The processors of one host take longer than the ideal: to be compared with another commit in one run.
    rows += [
        Row(f"10G-{placement}", placement, 16_000_000, 10e9, int(10e9 / 8 * 0.01), None) for placement in placements
    ]
    rows += [
        Row(
            f"far-{placement}", placement, parameters, 20e6, int(20e6 / 8 * 0.1),
            target=1.4, round_trip_s=0.1, loss=0.005,
        )
        for placement, parameters in zip(placements, (1_000_000, 2_000_000), strict=True)
    ]  # fmt: skip
    rows += [
        Row(f"slow-host-{placement}", placement, 4_000_000, 1e9, 512 << 10, slow_bits_per_s=100e6)
        for placement in placements
    ]
    rows += [
        Row(f"tcp-{placement}", placement, 4_000_000, 100e6, 512 << 10, target=None, beside_tcp=True)
        for placement in placements
    ]
    rows.append(Row("crowd", "one", 100_000, 100e6, 512 << 10, target=None, crowd=True))
    return rows
