"""Measures how fast this host encodes, averages and decodes, in seconds per parameter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_thc.arrays import everybody, value_dtype
from byteps_thc.compressor import Compressor
from byteps_thc.config import ResolvedConfig
from byteps_thc.rank_settings import RankSettings
from byteps_thc.tools.break_even.rank_bench import RankBench

#: Parameters that every thread works on in turn: more than a cache holds, as gradients are.
_MOST_PARAMETERS = 1 << 22
_REPETITIONS = 5


@dataclass(frozen=True)
class HostSpeed:
    """Seconds per parameter with `threads` threads together, each on a core of its own; the fastest repetition.

    average_s: of the own share, among ranks; 0 with servers, which add up the codes.
    bf16_s: to bf16 and back; None when torch is not installed.
    """

    threads: int
    encode_s: float
    average_s: float
    decode_s: float
    bf16_s: float | None

    @property
    def compute_s(self) -> float:
        """What THC computes for a parameter."""
        return self.encode_s + self.average_s + self.decode_s


def measure(settings: RankSettings | ResolvedConfig, *, threads: int, parameters: int, seconds: float) -> HostSpeed:
    """Measure for about that many seconds, and the import of torch.

    settings: of ranks, or of a worker of servers. parameters: of the model; fewer than 4 Mi per thread are measured
    with as many as there are.
    """
    size = max(1, min(parameters // threads, _MOST_PARAMETERS))
    share_s, average_s = seconds / 4, 0.0
    benches: Sequence[RankBench | _ServerBench]
    if isinstance(settings, RankSettings):
        benches = owners = [RankBench(settings, size) for _ in range(threads)]
    else:
        benches, owners = [_ServerBench(settings, size) for _ in range(threads)], []
    encode_s = _time([bench.encode for bench in benches], size, share_s)
    if owners:
        average_s = _time([bench.average for bench in owners], size, share_s)
    decode_s = _time([bench.decode for bench in benches], size, share_s)
    return HostSpeed(threads, encode_s, average_s, decode_s, time_bf16(threads, size, share_s))


class _ServerBench:
    """One thread's gradient and buffers, of a worker of servers. encode() comes first."""

    def __init__(self, resolved: ResolvedConfig, size: int) -> None:
        self._compressor = Compressor(resolved, workers=resolved.workers, worker=0, threads=1)
        gradient = np.random.default_rng(0).standard_normal(size, np.float32)
        step = resolved.config.partition_coordinates
        self._parts = [gradient[start : start + step] for start in range(0, size, step)]
        self._partitions = [self._compressor.partition(f"{n}", part.size) for n, part in enumerate(self._parts)]
        _, padded = self._compressor.sizes(self._parts[0].size)
        self._aggregate: npt.NDArray[Any] = np.zeros(padded, value_dtype(resolved.value_bits))
        self._contributions = everybody(resolved.workers)
        self._round = 0

    def encode(self) -> None:
        self._round += 1
        for partition, part in zip(self._partitions, self._parts, strict=True):
            self._compressor.encode(partition, self._compressor.measure(partition, part, round=self._round))

    def decode(self) -> None:
        for partition, part in zip(self._partitions, self._parts, strict=True):
            self._compressor.decode(partition, self._aggregate[: partition.padded], self._contributions, part)


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
