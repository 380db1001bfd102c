"""Process groups of an engine's own: collectives of one thread never wait for, or mix with, those of another."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from byteps_thc.errors import ConfigurationError, DeadlineError, ThcError, TransportError

T = TypeVar("T")


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
            return HostLane(dist.ProcessGroupGloo(own_store, rank, size, timeout))
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
    """Gloo: host tensors as they are."""

    def __init__(self, group: dist.ProcessGroupGloo) -> None:
        self._group: Any = group  # torch's stubs lack the collectives of back ends

    def max_(self, tensor: Tensor) -> Waitable:
        """See Lane."""
        return _HostWork(self._group, lambda: self._group.allreduce([tensor], reduction(dist.ReduceOp.MAX)))

    def sum_(self, tensor: Tensor) -> Waitable:
        """See Lane."""
        return _HostWork(self._group, lambda: self._group.allreduce([tensor], reduction(dist.ReduceOp.SUM)))

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        """See Lane."""
        return _HostWork(self._group, lambda: self._group.alltoall_base(output, source, [], []))

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        """See Lane."""
        return _HostWork(self._group, lambda: self._group._allgather_base(output, source))


def reduction(operation: Any) -> dist.AllreduceOptions:
    """Options of an all-reduce."""
    options = dist.AllreduceOptions()
    options.reduceOp = operation
    return options


class _HostWork:
    """A collective of a Gloo group.

    While it is not over, the group must not be destroyed: that waits for it as long as the group's timeout says, and
    would keep a process whose peers do not answer from ending. So the group is held where Python's end does not let go,
    for good if the collective fails: others that wait for the same rank may be in flight behind it.
    """

    def __init__(self, group: Any, collective: Callable[[], dist.Work]) -> None:
        self._group = group
        self._work = _translated(collective)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))

    def wait(self) -> None:
        """See Waitable. Called once."""
        _translated(self._work.wait)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._group))


def _translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except RuntimeError as error:
        raise translate(error) from error
