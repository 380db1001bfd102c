"""How many threads the kernels of a process use."""

from __future__ import annotations

import os

from byteps_thc._scheme.errors import ConfigurationError

#: More do not pay: a few cores fill the memory bandwidth that the kernels are bound by.
MAX_THREADS = 8


def default_threads(local_ranks: int | None = None) -> int:
    """Return the cores that this process may use divided by the ranks on its host, at most MAX_THREADS.

    local_ranks: None: the environment variable LOCAL_WORLD_SIZE, which torchrun sets, or 1. ConfigurationError when
    that is not a positive number.
    """
    if local_ranks is None:
        text = os.environ.get("LOCAL_WORLD_SIZE") or "1"
        if not text.isdecimal() or not int(text):
            raise ConfigurationError(f"LOCAL_WORLD_SIZE must be a number of processes, not {text!r}")
        local_ranks = int(text)
    return min(max(len(os.sched_getaffinity(0)) // local_ranks, 1), MAX_THREADS)
