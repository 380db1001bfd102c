"""Gloo: collectives on host tensors."""

import ctypes
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from byteps_thc._net.communicator import Backend, Communicator, Waitable, reduction, translate
from byteps_thc._net.ending import close_at_exit

_LEAST_WAIT_S = 1e-3  # zero would be no limit
_TAGS = 1 << 30  # of messages: gloo's are not negative, and int32
#: Step between tags of operations: odd, so that tags repeat late, and far from the sizes of messages.
_OPERATION_STEP = 0x2545F491
#: Up to this total of all ranks, tensors are sent to all and reduced there; a ring moves fewer bytes in more rounds.
_EXCHANGED_BYTES = 64 << 10


def is_exchanged(tensor_bytes: int, ranks: int) -> bool:
    """Whether a maximum of that size goes from every rank to every other, instead of around a ring."""
    return tensor_bytes * ranks <= _EXCHANGED_BYTES


class GlooCommunicator(Communicator):
    """Host tensors, in place.

    Small maxima and uint8 messages go from rank to rank: gloo's all-gather copies once more, and its all-reduce takes
    2 (n - 1) rounds. The size and the number of the operation identify a message. A rank with messages of another size
    waits until the deadline; gloo's own collectives would end the process.
    """

    def __init__(self, group: dist.ProcessGroupGloo, timeout_s: float) -> None:
        self._group: Backend = group
        self._rank, self._size = group.rank(), group.size()
        self._timeout_s, self._operations = timeout_s, 0
        self._max, self._sum = reduction(dist.ReduceOp.MAX), reduction(dist.ReduceOp.SUM)
        close_at_exit(self.close)

    def close(self) -> None:
        """Drop the group: its threads end now, unless something is in flight (_GlooWork)."""
        # Gloo's threads destroy tensors after a collective, which would abort a process whose Python is ending.
        self._group = None

    @override
    def max_(self, tensor: Tensor) -> Waitable:
        if not is_exchanged(tensor.nbytes, self._size):
            return self._work(lambda: [self._group.allreduce([tensor], self._max)])
        received = tensor.new_empty(self._size, *tensor.shape)
        return self._exchange(received, [tensor] * self._size, lambda: torch.amax(received, 0, out=tensor))

    @override
    def sum_(self, tensor: Tensor) -> Waitable:
        return self._work(lambda: [self._group.allreduce([tensor], self._sum)])

    @override
    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        sent = source.view(self._size, -1) if source.dim() == 1 else source
        return self._exchange(output.view(self._size, -1) if output.dim() == 1 else output, [*sent])

    @override
    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        return self._exchange(output.view(self._size, -1), [source] * self._size)

    @override
    def broadcast(self, tensor: Tensor) -> Waitable:
        return self._work(lambda: [self._group.broadcast([tensor], dist.BroadcastOptions())])

    def _exchange(
        self, received: Tensor, sent: Sequence[Tensor], then: Callable[[], object] = lambda: None
    ) -> "_GlooWork":
        """Start sending sent[r] to rank r; received[r] comes from rank r. Call `then` at the end."""
        tag = (self._operations * _OPERATION_STEP + sent[0].nbytes) % _TAGS
        self._operations += 1
        # Each rank begins with the next one, so that no rank is first for all others.
        others = [(self._rank + step) % self._size for step in range(1, self._size)]

        def start() -> list[dist.Work]:
            works = [self._group.recv([received[rank]], rank, tag) for rank in reversed(others)]
            return works + [self._group.send([sent[rank]], rank, tag) for rank in others]

        work = self._work(start, then)
        received[self._rank].copy_(sent[self._rank])
        return work

    def _work(self, start: Callable[[], list[dist.Work]], then: Callable[[], object] = lambda: None) -> "_GlooWork":
        return _GlooWork(self._group, self._timeout_s, start, then)


class _GlooWork(Waitable):
    """Operations of a Gloo group; `then` is called when they are over.

    Until then it holds group and tensors where Python's end does not free them, for good if it fails: messages may
    still arrive, and the group's destructor would wait for peers that do not answer.
    """

    def __init__(
        self, group: Backend, timeout_s: float, start: Callable[[], list[dist.Work]], then: Callable[[], object]
    ) -> None:
        self._group: Backend = group
        self._timeout_s, self._then = timeout_s, then
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        try:
            self._works = start()
        except RuntimeError as error:
            raise translate(error) from error

    @override
    def wait(self) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        for work in self._works:
            left_s = max(deadline_s - time.monotonic(), _LEAST_WAIT_S)
            try:
                work.wait(timedelta(seconds=left_s))
            except RuntimeError as error:
                raise translate(error) from error
        # The works hold the group, its connections and threads: a caller that keeps this object must keep no work.
        self._group, self._works = None, []
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self))
        self._then()
