"""How long a step's communication takes, from what travels and what is computed.

    N  parameters            n  workers            W  bandwidth of a worker's link, bytes per second and direction

Bytes per parameter, b, in the busier direction of a worker's link:

    fp32 ring all-reduce     2 (n-1)/n * 4
    bf16 ring all-reduce     2 (n-1)/n * 2
    THC, collective engine   (n-1)/n * (bits + down bits) / 8      all-to-all of codes, all-gather of averages' codes
    THC, network engine      max(code bits, value bits) / 8           codes up, sums down, at the same time

With several ranks on a node (--gpus-per-node) W is what the node's cards have together, and b what a node sends to
others (byteps_thc/transport/link_bytes.py): the ranks of a node average exactly, and each compresses its share between
the nodes ("THC"); "flat THC" is compressed among all ranks instead.

Seconds of computing per parameter, c, measured on this host:

    fp32                     0
    bf16                     to bf16 and back
    THC, collective engine   encode; decode, average and encode the own share; decode
    THC, network engine      norms, encode; decode
    THC of a node's ranks    a rank's share of that

and what a rank's processor does to send and receive b bytes, by gloo over loopback. Where a host has more ranks than
cores (--ranks-per-host), all of it takes as many times longer.

On a GPU (--device), with B buckets of DDP: c = kernels per parameter + B/N host's part per bucket, of bf16 alike.

Time of a step's communication:

    serial      N (c + b/W)         one after the other: the worst case
    overlapped  N max(c, b/W)       computing and sending of different pieces at the same time: the best case

THC (t), where b_t < b_o and c_t > c_o, takes as long as another scheme (o) at the break-even bandwidth, for any N:

    serial      W = (b_o - b_t) / (c_t - c_o)
    overlapped  W = b_o / c_t

Left out for all: headers, latency, what the backward pass hides. Left out in favour of fp32 and bf16: the additions of
their rings. Left out in favour of THC: scales or norms (4 bytes per 8192 parameters and receiver), the exchange within
a node, and aggregators whose links are slower than the workers' together (those of a switch, or of as many thc-ps as
workers, are not).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from byteps_thc.transport.link_bytes import LinkBytes

#: THC among all ranks, whatever node they are on.
FLAT = "flat THC"
_FP32_BYTES, _BF16_BYTES = 4, 2
_BITS = 8


@dataclass(frozen=True)
class Scheme:
    """A way to average gradients. link_bytes, compute_s: b and c, per parameter."""

    name: str
    link_bytes: float
    compute_s: float

    def carried(self, byte_s: float, crowd: float) -> Self:
        """The same with what sending costs: byte_s of computing for a byte. crowd: ranks that wait for one core."""
        return replace(self, compute_s=crowd * (self.compute_s + byte_s * self.link_bytes))

    def step_s(self, parameters: int, bandwidth_bps: float, *, overlapped: bool) -> float:
        """Seconds that a step's communication takes over links of that many bits per second."""
        link_s = self.link_bytes * _BITS / bandwidth_bps
        return parameters * (max(self.compute_s, link_s) if overlapped else self.compute_s + link_s)


def fp32_ring(workers: int) -> Scheme:
    """Ring all-reduce of the gradient as it is."""
    return Scheme("fp32", _ring_bytes(workers, _FP32_BYTES), 0.0)


def bf16_ring(workers: int, compute_s: float) -> Scheme:
    """Ring all-reduce of the gradient converted to bf16."""
    return Scheme("bf16", _ring_bytes(workers, _BF16_BYTES), compute_s)


def thc_collective(workers: int, bits: int, down_bits: int, compute_s: float) -> Scheme:
    """THC among the workers: each averages its share."""
    return Scheme("THC", (workers - 1) / workers * (bits + down_bits) / _BITS, compute_s)


def of_nodes(sent: LinkBytes, *, bf16_s: float, flat_s: float, two_levels_s: float) -> tuple[Scheme, list[Scheme]]:
    """Return THC in two levels, and what it is compared with, over the cards of nodes with several ranks."""
    others = [Scheme("fp32", sent.fp32, 0.0), Scheme("bf16", sent.bf16, bf16_s), Scheme(FLAT, sent.flat, flat_s)]
    return Scheme("THC", sent.two_levels, two_levels_s), others


def thc_network(code_bits: int, value_bits: int, compute_s: float) -> Scheme:
    """THC with parameter servers or a switch."""
    return Scheme("THC", max(code_bits, value_bits) / _BITS, compute_s)


def break_even_bps(thc: Scheme, other: Scheme, *, overlapped: bool) -> float:
    """Bits per second of the links below which thc is faster than other.

    0 when it sends no less; infinity when it computes no more either.
    """
    if thc.link_bytes >= other.link_bytes:
        return 0.0
    if thc.compute_s <= other.compute_s:
        return math.inf
    saved_bytes = other.link_bytes if overlapped else other.link_bytes - thc.link_bytes
    extra_s = thc.compute_s if overlapped else thc.compute_s - other.compute_s
    return saved_bytes * _BITS / extra_s


def _ring_bytes(workers: int, element_bytes: int) -> float:
    return 2 * (workers - 1) / workers * element_bytes
