"""Measures how fast this host encodes, sums and decodes, in seconds per parameter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_thc import _core
from byteps_thc.arrays import everybody, value_dtype
from byteps_thc.compressor import SCALE_GROUP, Compressor, scale_groups
from byteps_thc.config import ResolvedConfig

#: Parameters that every thread works on in turn: more than a cache holds, as gradients are.
_MOST_PARAMETERS = 1 << 22
_REPETITIONS = 5


@dataclass(frozen=True)
class HostSpeed:
    """Seconds per parameter with `threads` threads together, each on a core of its own; the fastest repetition.

    sum_s: look-up and addition of one worker's codes of a parameter, and requantizing of the sums, or packing of sums
    narrower than value_bits.
    bf16_s: to bf16 and back; None when torch is not installed.
    """

    threads: int
    encode_s: float
    sum_s: float
    decode_s: float
    bf16_s: float | None

    def compute_s(self, *, sums: bool) -> float:
        """What THC computes for a parameter; sums: whether this host adds up its share."""
        return self.encode_s + self.decode_s + (self.sum_s if sums else 0.0)


def measure(resolved: ResolvedConfig, *, packed_sums: bool, threads: int, parameters: int, seconds: float) -> HostSpeed:
    """Measure for about that many seconds, and the import of torch.

    packed_sums: as they are for the collective engine. parameters: of the model; fewer than 4 Mi per thread are
    measured with as many as there are.
    """
    size = max(1, min(parameters // threads, _MOST_PARAMETERS))
    benches = [_Bench(resolved, packed_sums, size) for _ in range(threads)]
    share_s = seconds / 4
    encode_s = _time([bench.encode for bench in benches], size, share_s)
    sum_s = _time([bench.sum for bench in benches], size, share_s)
    decode_s = _time([bench.decode for bench in benches], size, share_s)
    return HostSpeed(threads, encode_s, sum_s, decode_s, time_bf16(threads, size, share_s))


class _Bench:
    """One thread's gradient and buffers. encode() is called first."""

    def __init__(self, resolved: ResolvedConfig, packed_sums: bool, size: int) -> None:
        self._compressor = Compressor(resolved, workers=resolved.workers, worker=0, threads=1)
        self._sum_bits = resolved.sum_bits
        self._table, self._down = resolved.table, resolved.down
        self._packs = packed_sums and self._down is None and self._sum_bits < resolved.value_bits
        gradient = np.random.default_rng(0).standard_normal(size, np.float32)
        step = resolved.config.partition_coordinates
        self._parts = [gradient[start : start + step] for start in range(0, size, step)]
        self._partitions = [self._compressor.partition(f"{n}", part.size) for n, part in enumerate(self._parts)]
        _, padded = self._compressor.sizes(self._parts[0].size)
        self._aggregate: npt.NDArray[Any] = np.zeros(padded, value_dtype(resolved.value_bits))
        self._packed = np.zeros(_core.code_bytes(padded, self._sum_bits), np.uint8)
        self._own_share = max(padded // resolved.workers, 1)
        if self._down is not None:
            self._own_share = min(scale_groups(self._own_share) * SCALE_GROUP, padded)
        self._scales = np.zeros(scale_groups(padded), np.uint16)
        self._received = np.zeros(padded, np.uint8)
        self._contributions = everybody(resolved.workers)
        self._round = 0

    def encode(self) -> None:
        self._round += 1
        for partition, part in zip(self._partitions, self._parts, strict=True):
            self._compressor.encode(partition, self._compressor.measure(partition, part, round=self._round))

    def sum(self) -> None:
        for partition in self._partitions:
            aggregate = self._aggregate[: partition.padded]
            _core.lookup_sum(partition.codes, self._table.array, aggregate, bits=self._table.bits, add=False)
            own = aggregate[: self._own_share]
            packed = self._packed[: _core.code_bytes(own.size, self._sum_bits)]
            if self._down is not None:
                self._compressor.requantize(partition, own, packed, self._scales[: scale_groups(own.size)], first=0)
            elif self._packs:
                _core.pack(own, packed, bits=self._sum_bits)

    def decode(self) -> None:
        for partition, part in zip(self._partitions, self._parts, strict=True):
            aggregate = self._aggregate[: partition.padded]
            packed = self._packed[: _core.code_bytes(partition.padded, self._sum_bits)]
            if self._down is not None:
                values = self._received[: partition.padded]
                _core.lookup_sum(packed, self._down.array, values, bits=self._sum_bits, add=False)
                self._compressor.decode(partition, values, self._scales[: scale_groups(values.size)], part)
                continue
            if self._packs:
                _core.unpack(packed, aggregate, bits=self._sum_bits)
            self._compressor.decode(partition, aggregate, self._contributions, part)


def _time(works: Sequence[Callable[[], None]], size: int, seconds: float) -> float:
    """Seconds per parameter when each thread does its work again and again; the fastest of some repetitions."""
    barrier = threading.Barrier(len(works))

    def repeat(work: Callable[[], None]) -> float:
        """Parameters per second of processor time, so that other programs' load counts as little as possible."""
        barrier.wait()
        end, start, rounds = time.monotonic() + seconds / _REPETITIONS, time.thread_time(), 0
        while rounds == 0 or time.monotonic() < end:
            work()
            rounds += 1
        return rounds * size / max(time.thread_time() - start, 1e-9)

    def repetition(pool: ThreadPoolExecutor) -> float:
        return 1 / sum(pool.map(repeat, works))

    with ThreadPoolExecutor(len(works)) as pool:
        repetition(pool)  # memory is mapped, caches and clocks are warm
        return min(repetition(pool) for _ in range(_REPETITIONS))


def time_bf16(threads: int, size: int, seconds: float) -> float | None:
    """What DDP's bf16 hook computes; None without torch."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the threads are ours

    def conversion() -> Callable[[], None]:
        gradient, half = torch.randn(size, device="cpu"), torch.empty(size, dtype=torch.bfloat16, device="cpu")

        def convert() -> None:
            half.copy_(gradient)
            gradient.copy_(half)

        return convert

    try:
        return _time([conversion() for _ in range(threads)], size, seconds)
    finally:
        torch.set_num_threads(before)
