"""An Ethernet switch in user space, with rates, delay, queues and random loss, for kernels without netem.

Every host's eth0 is a TAP device. A frame waits for its host's link, then for its destination's link, and arrives after
the delay. Each direction of a link has the rate and a queue.
"""

import argparse
import fcntl
import heapq
import os
import random
import select
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from congestion.control import Words, serve
from thc_lab.namespaces import inside

INTERFACE = "eth0"
_TUNSETIFF = 0x400454CA
_IFF_TAP_WITHOUT_HEADER = 0x1002
_LARGEST_FRAME_BYTES = 2048
_MAC_BYTES = 6
#: Frames of a host that are read before the other hosts' turn.
_BATCH = 64
_IDLE_S = 0.05
_UNLIMITED_BITS_PER_S = 1e12
#: Ahead of the measured programs: without it, beside compilers, one frame in ten left more than a millisecond late.
_NICE = -10


def mac_of(host: int) -> bytes:
    """Address of a host's eth0."""
    return bytes([2, 0, 0, 0, 7, host])


def open_tap(namespace: str) -> int:
    """Make eth0 in a namespace; it lives as long as the descriptor."""
    with inside(namespace):
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _IFF_TAP_WITHOUT_HEADER))
    return tap


class Link:
    """One direction of a host's link."""

    def __init__(self) -> None:
        self.free_at_s = 0.0
        """when it has sent all that waits for it"""
        self.bytes = 0
        self.drops = 0

    def pass_on(self, size_bytes: int, now_s: float, bits_per_s: float, queue_bytes: int) -> float | None:
        """When a frame has left; None if the queue is full."""
        waiting_s = max(0.0, self.free_at_s - now_s)
        if waiting_s * bits_per_s / 8 + size_bytes > queue_bytes:
            self.drops += 1
            return None
        self.bytes += size_bytes
        self.free_at_s = now_s + waiting_s + size_bytes * 8 / bits_per_s
        return self.free_at_s


class Relay:
    """Passes frames on between TAP devices."""

    def __init__(self, taps: Sequence[int]) -> None:
        self._taps = taps
        self._hosts = {mac_of(host): host for host in range(len(taps))}
        self._up, self._down = [Link() for _ in taps], [Link() for _ in taps]
        self._bits_per_s, self._delay_s, self._loss = _UNLIMITED_BITS_PER_S, 0.0, 0.0
        self._queue_bytes = 1 << 30
        self._random = random.Random(1)
        self._lost = 0
        self._events: list[tuple[float, int, int, bool, bytes]] = []
        """when, number, destination, whether it has passed the destination's link"""
        self._number = 0

    def shape(self, words: Words) -> Words:
        """bits_per_s, queue_bytes, delay_s, loss."""
        self._bits_per_s, self._queue_bytes = words["bits_per_s"], words["queue_bytes"]
        self._delay_s, self._loss = words["delay_s"], words["loss"]
        return {}

    def unshape(self, _: Words) -> Words:
        """Pass everything on at once."""
        return self.shape(
            {"bits_per_s": _UNLIMITED_BITS_PER_S, "queue_bytes": 1 << 30, "delay_s": 0.0, "loss": 0.0}
        )  # fmt: skip

    def counts(self, _: Words) -> Words:
        """Counts so far: frames dropped by full queues, frames lost at random, bytes sent by each host."""
        drops = sum(link.drops for link in (*self._up, *self._down))
        return {"drops": drops, "lost": self._lost, "sent_bytes": [link.bytes for link in self._up]}

    def run(self) -> None:
        """Relay frames without end."""
        while True:
            until_s = self._events[0][0] - time.monotonic() if self._events else _IDLE_S
            ready, _, _ = select.select(self._taps, [], [], min(_IDLE_S, max(0.0, until_s)))
            for tap in ready:
                self._read(self._taps.index(tap))
            self._deliver()

    def _read(self, host: int) -> None:
        for _ in range(_BATCH):
            try:
                frame = os.read(self._taps[host], _LARGEST_FRAME_BYTES)
            except BlockingIOError:
                return
            now_s = time.monotonic()
            left_s = self._up[host].pass_on(len(frame), now_s, self._bits_per_s, self._queue_bytes)
            if left_s is None:
                continue
            destination = self._hosts.get(frame[:_MAC_BYTES])
            others = (other for other in range(len(self._taps)) if other != host)
            for other in others if destination is None else (destination,):
                self._later(left_s, other, False, frame)

    def _deliver(self) -> None:
        while self._events and self._events[0][0] <= (now_s := time.monotonic()):
            at_s, _, host, passed, frame = heapq.heappop(self._events)
            if passed:
                try:
                    os.write(self._taps[host], frame)
                except OSError:  # its queue is full, or the interface is not up yet
                    self._down[host].drops += 1
            elif self._random.random() < self._loss:
                self._lost += 1
            else:
                # Measured from the due time: a late relay must not slow the link down.
                left_s = self._down[host].pass_on(len(frame), min(at_s, now_s), self._bits_per_s, self._queue_bytes)
                if left_s is not None:
                    self._later(left_s + self._delay_s, host, True, frame)

    def _later(self, at_s: float, host: int, passed: bool, frame: bytes) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, self._number, host, passed, frame))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("namespaces", nargs="+")
    args = parser.parse_args()
    os.nice(_NICE)
    relay = Relay([open_tap(namespace) for namespace in args.namespaces])
    threading.Thread(target=relay.run, daemon=True).start()
    serve(args.control, 0, {"shape": relay.shape, "unshape": relay.unshape, "counts": relay.counts})
    os._exit(0)  # the thread has no end


if __name__ == "__main__":
    main()
