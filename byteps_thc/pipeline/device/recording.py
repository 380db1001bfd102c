"""What a buffer puts on the stream between two collectives, recorded once and replayed: one launch of the host's.

A CUDA graph freezes addresses and numbers. So what is recorded works in memory that stays, and what is another in every
round (keys, fingerprints) is written there before. Collectives are not recorded: NCCL's watchdog, which ends a wait for
a rank that is dead, knows nothing of replayed ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

#: Takes work that only puts something on the current stream, does none of it, and returns what does it again and again.
Record = Callable[[Callable[[], None]], Callable[[], None]]

#: Rounds before something is recorded: kernels are compiled, memory is taken, DDP has rebuilt its buckets.
WARM_UP_ROUNDS = 2
#: Recordings of one buffer. More come of gradients that are somewhere else every time, which are never recorded again.
MAX_RECORDINGS = 16
_MAX_COUNTED = 64


def record_cuda_graph(work: Callable[[], None]) -> Callable[[], None]:
    """Record on the current stream, which must not be the default one."""
    graph = torch.cuda.CUDAGraph()
    # Threads of NCCL and of others may call CUDA meanwhile.
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()
    return graph.replay


class Recordings:
    """Those of one buffer. record: None: nothing is recorded, all is put on the stream anew."""

    def __init__(self, record: Record | None) -> None:
        self._record = record
        self._rounds: Counter[tuple[object, ...]] = Counter()
        self._replays: dict[tuple[object, ...], Callable[[], None]] = {}

    def run(self, name: str, work: Callable[[], None], *moving: Tensor) -> None:
        """Put work on the current stream. name: of the work. moving: what of its tensors may be elsewhere next time."""
        if self._record is None:
            work()
            return
        key = (name, *[(tensor.data_ptr(), tensor.dtype) for tensor in moving])
        replay = self._replays.get(key)
        if replay is None:
            if not self._is_due(key):
                work()
                return
            replay = self._replays[key] = self._record(work)
        replay()

    def _is_due(self, key: tuple[object, ...]) -> bool:
        """Whether to record what has no recording."""
        if len(self._replays) == MAX_RECORDINGS:
            return False
        if len(self._rounds) == _MAX_COUNTED:
            self._rounds.clear()
        self._rounds[key] += 1
        return self._rounds[key] > WARM_UP_ROUNDS
