"""The time of a step by the bandwidth of a host's link.

    W  bandwidth of a host's link, each direction       X  time of a step without communication, X/3 in forward
    C  the processors' part of averaging, measured      L  bits of a host in the busier direction / W
    B  buckets of DDP, evenly ready in backward

The slower of processors and link works all the time, and the faster adds its part of one bucket:

    step = max(X + C + L/B,  X/3 + (2/3 X + C)/B + L)

torch's PowerSGD waits for each bucket (B = 1). Ethernet, IP and TCP headers count, scales of rotation blocks do not.
"""

import math
from dataclasses import dataclass

import numpy as np

#: Bits of a frame of 1514 bytes, preamble apart, for a bit of payload.
HEADERS = 1514 / 1448
#: Range of the search: no link of a host is slower, or faster.
SLOWEST_BPS, FASTEST_BPS = 1e5, 1.6e12
_FORWARD = 1 / 3
#: Bandwidths of the search, at most 1.7 % apart.
_STEPS = 1000


@dataclass(frozen=True)
class Way:
    """A way to average a model's gradients.

    bits: of a parameter, both ways. nmse: |average - exact|^2 / |exact|^2. processor_s: C. link_bits: L W. buckets: B.
    """

    name: str
    bits: float
    nmse: float
    processor_s: float
    link_bits: float
    buckets: int

    def step_s(self, bandwidth_bps: float, compute_s: float = 0.0) -> float:
        """Seconds of a step; without compute_s, of its communication."""
        link_s = HEADERS * self.link_bits / bandwidth_bps
        busy_s = compute_s + self.processor_s + link_s / self.buckets
        first_s = _FORWARD * compute_s + ((1 - _FORWARD) * compute_s + self.processor_s) / self.buckets
        return max(busy_s, first_s + link_s)

    @property
    def most_bps(self) -> float:
        """Bandwidth that this host's processors fill when they do nothing else."""
        return min(HEADERS * self.link_bits / max(self.processor_s, 1e-12), FASTEST_BPS)


@dataclass(frozen=True)
class Point:
    """The bandwidth below (or above) which THC is faster than a peer; bps None: none. limited: by the processors."""

    bps: float | None
    below: bool
    limited: bool


def break_even(thc: Way, peer: Way, most_bps: float, compute_s: float = 0.0) -> Point:
    """Return the bandwidth up to which THC is faster than a peer. most_bps: the processors' limit."""

    def faster(bps: float) -> bool:
        return thc.step_s(bps, compute_s) < peer.step_s(bps, compute_s)

    below = thc.link_bits < peer.link_bits
    bandwidths_bps = np.geomspace(SLOWEST_BPS, most_bps, _STEPS)
    turn = next((number for number, bps in enumerate(bandwidths_bps) if faster(bps) != below), None)
    if turn == 0:
        return Point(None if below else SLOWEST_BPS, below, limited=False)
    if turn is None:
        return Point(most_bps if below else None, below, limited=below)
    return Point(math.sqrt(bandwidths_bps[turn - 1] * bandwidths_bps[turn]), below, limited=False)
