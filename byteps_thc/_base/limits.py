"""Limits of workers, threads, GPU kernels and words."""

import os
from typing import Literal

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.wire.layout import MAX_WORKERS, MAX_WORKERS_SWITCH

Bits = Literal[1, 2, 3, 4, 5, 6, 7, 8]

#: coordinates that a program of the kernels holds
MAX_GPU_ROTATION_BLOCK = 16384

#: Ranks that sum codes themselves, and workers of BytePS's servers: their sums of 16 bits hold granularities up to 63.
MAX_RANKS = 1024

#: Narrower rows of embeddings travel exactly among ranks: codes and a scale, at 8 bits, would take about fp32's bytes.
NARROWEST_ROW = 32

#: Largest word of a fingerprint or digest, which has no sign bit; also the sum of its two words.
LARGEST_WORD = 0x7FFFFFFF


def require_packet_workers(workers: int) -> None:
    """Raise ConfigurationError if thc-ps and switches cannot sum for so many workers."""
    if workers > MAX_WORKERS:
        raise ConfigurationError(
            f"thc-ps sums for at most {MAX_WORKERS} workers, and a switch for {MAX_WORKERS_SWITCH}, not {workers}: "
            f"average without NetworkConfig among the ranks of a process group, up to {MAX_RANKS} of them, or within "
            "each host first, so that one rank a host is a worker"
        )


#: A few cores fill the memory bandwidth that bounds the kernels.
MAX_THREADS = 8


def default_threads(local_ranks: int | None = None) -> int:
    """Return this process's cores divided by the ranks on its host, at most MAX_THREADS.

    local_ranks: None: LOCAL_WORLD_SIZE, which torchrun sets, or 1. Raises ConfigurationError unless that is positive.
    """
    if local_ranks is None:
        text = os.environ.get("LOCAL_WORLD_SIZE") or "1"
        if not text.isdecimal() or not int(text):
            raise ConfigurationError(f"LOCAL_WORLD_SIZE must be a number of processes, not {text!r}")
        local_ranks = int(text)
    return min(max(len(os.sched_getaffinity(0)) // local_ranks, 1), MAX_THREADS)
