"""Measures what sending and receiving costs this host's processors: gloo over loopback, two ranks in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

_RANKS = 2
#: More than caches hold, as gradients are.
_BYTES = 16 << 20
_REPETITIONS = 3
_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class TransportSpeed:
    """Processor time of a rank, kernel included, for each byte that it sends, while it receives as many.

    reduce_s: in an all-reduce of float32, additions included. exchange_s: in an all-to-all of bytes.
    """

    reduce_s: float
    exchange_s: float


#: What is counted where torch is not installed.
NOTHING = TransportSpeed(0.0, 0.0)


def measure_transport(seconds: float) -> TransportSpeed | None:
    """Measure for about that many seconds; None without torch, or where gloo cannot open sockets on loopback."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    dist: Any = torch.distributed  # its types leave out what is made here
    store = dist.HashStore()

    def group(rank: int) -> Any:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = _TIMEOUT
        return dist.ProcessGroupGloo(store, rank, _RANKS, options)

    floats = [torch.zeros(_BYTES // 4, device="cpu") for _ in range(_RANKS)]
    sent, received = ([torch.zeros(_BYTES, dtype=torch.uint8, device="cpu") for _ in range(_RANKS)] for _ in range(2))
    with ThreadPoolExecutor(_RANKS) as pool:
        try:
            groups = list(pool.map(group, range(_RANKS)))
        except RuntimeError:
            return None

        def reduce(rank: int) -> None:
            groups[rank].allreduce([floats[rank]]).wait()

        def exchange(rank: int) -> None:
            groups[rank].alltoall_base(received[rank], sent[rank], [], []).wait()

        def byte_s(work: Callable[[int], None], sent_bytes: float) -> float:
            """Least processor time of the repetitions."""
            list(pool.map(work, range(_RANKS)))  # connections, and memory that is mapped
            times: list[float] = []
            end = time.monotonic() + seconds / 2
            while len(times) < _REPETITIONS or time.monotonic() < end:
                start = time.process_time()
                list(pool.map(work, range(_RANKS)))
                times.append(time.process_time() - start)
            return min(times) / _RANKS / sent_bytes

        share = (_RANKS - 1) / _RANKS
        return TransportSpeed(byte_s(reduce, 2 * share * _BYTES), byte_s(exchange, share * _BYTES))
