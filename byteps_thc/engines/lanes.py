"""Process groups of an engine's own: collectives of one thread never wait for, or mix with, those of another."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

# Before there is a process group: its functions' default arguments would hold the group, whose threads then outlive
# destroy_process_group() and can abort the process at exit. torch.optim and torch.compile import it, some time.
import torch.distributed.nn.functional
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from byteps_thc.errors import ConfigurationError, DeadlineError, ThcError, TransportError

#: Up to as many bytes of all ranks together are sent to all and reduced there; a ring moves fewer, but in more rounds.
_EXCHANGED_BYTES = 64 << 10
_LEAST_WAIT_S = 1e-3  # zero would be no limit
_TAGS = 1 << 30  # of messages: gloo's are not negative, and int32


class Waitable(Protocol):
    """A collective in flight."""

    def wait(self) -> None:
        """Wait until it is done; once. Raises TransportError or DeadlineError."""


class Lane(Protocol):
    """A stream of collectives on host tensors; all ranks must start the same ones in the same order."""

    def max_(self, tensor: Tensor) -> Waitable:
        """Start replacing every element by its maximum over the ranks. int32."""

    def sum_(self, tensor: Tensor) -> Waitable:
        """Start replacing every element by its sum over the ranks. float32."""

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        """Start sending the r-th part of `source` to rank r; output[r] is what rank r sends here. uint8."""

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        """Start concatenating every rank's `source` in `output`. uint8."""


def open_lane(process_group: dist.ProcessGroup, timeout_s: float) -> Lane:
    """Return a new lane over the ranks of `process_group`; all of them must call this, in the same order.

    timeout_s: a collective that takes longer fails. Raises ConfigurationError for back ends other than gloo and NCCL,
    TransportError or DeadlineError when the ranks cannot connect.
    """
    # dist.new_group() is not used: it takes all ranks of the job, or with use_local_synchronization names the group
    # after the number of groups that the process knows, which need not be the same on all ranks.
    backends = _backends(process_group)
    rank, size = process_group.rank(), process_group.size()
    store = process_group.get_group_store()
    number = store.add(f"thc/lanes/{rank}", 1)
    own_store = PrefixStore(f"thc/lane{number}", store)
    timeout = timedelta(seconds=timeout_s)
    try:
        if "gloo" in backends:
            return HostLane(dist.ProcessGroupGloo(own_store, rank, size, timeout), timeout_s)
        if "nccl" in backends:
            from byteps_thc.engines.device_lane import DeviceLane

            return DeviceLane(own_store, rank, size, timeout)
    except RuntimeError as error:
        raise translate(error) from error
    raise ConfigurationError(f"process groups of back ends {backends} are not supported: use gloo or nccl")


def _backends(process_group: dist.ProcessGroup) -> list[str]:
    """Of host and device tensors; dist.get_backend() says "undefined" when nobody chose them."""
    names = []
    for device in ("cpu", "cuda"):
        try:
            names.append(process_group._get_backend(torch.device(device)).name())
        except RuntimeError:  # none for this device
            continue
    return names


def translate(error: RuntimeError) -> ThcError:
    """What a back end's exception means: another rank was too late, or is gone."""
    text = str(error)
    late = "timed out" in text.lower() or "timeout" in text.lower()
    if late:
        return DeadlineError(
            "other ranks did not answer in time: have they stopped, or did one of them evaluate or write a checkpoint "
            f"for longer than CompressionPolicy.deadline_s? {text}"
        )
    return TransportError(f"the connection to another rank is lost; has it ended? {text}")


class HostLane:
    """Gloo: host tensors as they are.

    Small maxima and what is gathered go from rank to rank: gloo's own all-gather copies everything once more, and its
    all-reduce takes 2 (n - 1) rounds also when a tensor is a few norms. A message is known by the number of its
    operation, which is the same on all ranks.
    """

    def __init__(self, group: dist.ProcessGroupGloo, timeout_s: float) -> None:
        self._group: Any = group  # torch's stubs lack the collectives of back ends
        self._timeout_s = timeout_s
        self._rank, self._size = group.rank(), group.size()
        self._operations = 0

    def max_(self, tensor: Tensor) -> Waitable:
        """See Lane."""
        if not _is_exchanged(tensor.nbytes, self._size):
            return self._work(lambda: [self._group.allreduce([tensor], reduction(dist.ReduceOp.MAX))])
        received = tensor.new_empty(self._size, *tensor.shape)
        return self._exchange(received, tensor, lambda: torch.amax(received, 0, out=tensor))

    def sum_(self, tensor: Tensor) -> Waitable:
        """See Lane."""
        return self._work(lambda: [self._group.allreduce([tensor], reduction(dist.ReduceOp.SUM))])

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        """See Lane."""
        return self._work(lambda: [self._group.alltoall_base(output, source, [], [])])

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        """See Lane."""
        return self._exchange(output.view(self._size, -1), source)

    def _exchange(self, received: Tensor, sent: Tensor, then: Callable[[], object] = lambda: None) -> _HostWork:
        """Start sending a tensor to all ranks; received[r] is what rank r sends, and then `then` is called."""
        tag, self._operations = self._operations, (self._operations + 1) % _TAGS
        # Each rank begins with the next one, so that no rank is everybody's first.
        others = [(self._rank + step) % self._size for step in range(1, self._size)]

        def start() -> list[dist.Work]:
            works = [self._group.recv([received[rank]], rank, tag) for rank in reversed(others)]
            return works + [self._group.send([sent], rank, tag) for rank in others]

        work = self._work(start, then)
        received[self._rank].copy_(sent)
        return work

    def _work(self, start: Callable[[], list[dist.Work]], then: Callable[[], object] = lambda: None) -> _HostWork:
        return _HostWork(self._group, self._timeout_s, start, then)


def _is_exchanged(tensor_bytes: int, ranks: int) -> bool:
    return tensor_bytes * ranks <= _EXCHANGED_BYTES


def max_volume_bytes(tensor_bytes: int, ranks: int) -> int:
    """Volume (statistics.recorder.moved_bytes) of HostLane.max_(); NCCL's ring moves no more."""
    return tensor_bytes * (ranks if _is_exchanged(tensor_bytes, ranks) else 2)


def reduction(operation: Any) -> dist.AllreduceOptions:
    """Options of an all-reduce."""
    options = dist.AllreduceOptions()
    options.reduceOp = operation
    return options


class _HostWork:
    """What has been started on a Gloo group; `then` is called when it is over.

    While it is not over, the group must not be destroyed: that waits for it as long as the group's timeout says, and
    would keep a process whose peers do not answer from ending. So this object, which has group and tensors, is held
    where Python's end does not let go, for good if it fails: messages from living ranks may still be on their way.
    """

    def __init__(
        self, group: Any, timeout_s: float, start: Callable[[], list[dist.Work]], then: Callable[[], object]
    ) -> None:
        self._group, self._timeout_s, self._then = group, timeout_s, then
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        try:
            self._works = start()
        except RuntimeError as error:
            raise translate(error) from error

    def wait(self) -> None:
        """See Waitable. Called once."""
        deadline_s = time.monotonic() + self._timeout_s
        for work in self._works:
            left_s = max(deadline_s - time.monotonic(), _LEAST_WAIT_S)
            try:
                work.wait(timedelta(seconds=left_s))
            except RuntimeError as error:
                raise translate(error) from error
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self))
        self._then()
