"""Several processes of one BytePS worker (the GPUs of a host): they average among themselves, and the local root sends.

BytePS's own intra-host reduction cannot be used: its sums only go to BytePS's servers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo
from torch.futures import Future
from typing_extensions import override

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.torch_private import BroadcastOptions, PrefixStore, ReduceOptions, Store, TCPStore, gloo_options
from byteps_thc._engine.engine import Engine, GradientBuffer
from byteps_thc._engine.hierarchy.engine import NodeExchange, NodeLayout
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import State, StateDict
from byteps_thc._engine.staging import SideStream, make_staging
from byteps_thc._engine.statistics import CompressionStats, StatsRecorder
from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.push_pull import push_pull_async_inplace, synchronize
from byteps_thc._net.communicator import ExactSum, Waitable, translate
from byteps_thc._net.ending import close_at_exit

_LOOPBACK = "127.0.0.1"


class HostGroup:
    """One lane's collectives, gloo over loopback. Every process must make the same calls in the same order.

    average() and share() wait, each in a thread. They raise DeadlineError, or TransportError if a process has ended.
    """

    def __init__(self, store: Store, lane: int, deadline_s: float) -> None:
        self._store = store  # the first process's serves the others
        self._size = process.local_size()
        self.is_root = process.local_rank() == 0
        self._averaging = _open_gloo(PrefixStore(f"{lane}/average", store), deadline_s)
        self._sharing = _open_gloo(PrefixStore(f"{lane}/share", store), deadline_s)
        self._calls: list[None] = []
        close_at_exit(self.close)

    def close(self) -> None:
        """Drop the groups, as GlooCommunicator.close(), unless calls are under way: they would wait."""
        if not self._calls:
            self._averaging = self._sharing = None

    def average(self, tensor: Tensor) -> None:
        """Replace the local root's tensor by the average; the others' become undefined."""
        values = tensor.float()  # float() returns float32 tensors themselves
        with self._call():
            self._averaging.reduce([values], ReduceOptions()).wait()
        if self.is_root:
            tensor.copy_(values.div_(self._size))

    def share(self, tensor: Tensor) -> None:
        """Overwrite the tensor (1-D) of all others by the local root's, bit for bit."""
        with self._call():
            self._sharing.broadcast([tensor.view(torch.uint8)], BroadcastOptions()).wait()

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._calls.append(None)  # list methods are atomic, and two threads may be here
        with _translated():
            yield
        self._calls.pop()  # not after an error: messages from others may be on their way


class RootExchange(NodeExchange[NodeLayout]):
    """The local root gets the average of all processes of its host, and returns its own average to them."""

    def __init__(self, group: HostGroup, *, workers: int, worker: int) -> None:
        self.size, self.rank, self.device = workers, worker, torch.device("cpu")
        self._group = group

    @override
    def layout(self, buffer: GradientBuffer, recorder: StatsRecorder) -> NodeLayout:
        return NodeLayout(buffer, make_staging(buffer.gradient, SideStream(self.device), recorder))

    @override
    def scatter(self, layout: NodeLayout, buffer: GradientBuffer, round: int, *, new: bool) -> GradientBuffer:
        self._group.average(buffer.gradient)
        return buffer

    @override
    def gather(self, layout: NodeLayout, gradient: Tensor) -> None:
        self._group.share(gradient)


class _Awaited(Future[Tensor]):
    """The value of a gradient once a sum is waited for; None: no sum."""

    def __init__(self, gradient: Tensor, work: Waitable | None) -> None:
        super().__init__()
        self._gradient, self._work = gradient, work

    @override
    def wait(self) -> Tensor:
        if self._work is not None:
            self._work.wait()
        return self._gradient


class Bystander(Engine):
    """The engine of a process whose local root sends, and keeps residuals: joins BytePS's sums with zeros."""

    def __init__(self, policy: CompressionPolicy, exact: ExactSum, recorder: StatsRecorder) -> None:
        self.workers, self.worker = process.workers(), process.worker()
        self._policy, self._exact, self._recorder = policy, exact, recorder
        self._steps = 0

    @override
    def start_step(self) -> None:
        self._steps += 1

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        """Join the sum of a buffer, if it travels exactly; nothing is written to its gradient."""
        compressed = any(not self._policy.travels_exactly(part.name, part.size, part.row) for part in buffer.parameters)
        if compressed and self._policy.compresses(max(self._steps - 1, 0)):
            return _Awaited(buffer.gradient, None)
        return _Awaited(buffer.gradient, self._exact(torch.zeros(buffer.gradient.numel(), device="cpu")))

    @override
    def state_dict(self) -> StateDict:
        return {"local_root": False, "round": 0, "step": self._steps, "residuals": {}}

    @override
    def load_state_dict(self, state: State) -> None:
        if not isinstance(state, Mapping) or state.get("local_root", True):
            raise ConfigurationError("this state is of the worker's local root, the process with local_rank() 0")
        step = state.get("step")
        if type(step) is not int or step < 0:
            raise ConfigurationError(f"state is damaged: its step is {step!r}, not a count")
        self._steps = step

    @override
    def statistics(self) -> CompressionStats:
        return self._recorder.snapshot()


def open_host_groups(lanes: int, deadline_s: float) -> list[HostGroup]:
    """Return a group for each lane; by all processes. Raises DeadlineError or TransportError if others are late."""
    worker = process.worker()
    ports = torch.zeros(process.workers(), dtype=torch.int64, device="cpu")
    timeout = timedelta(seconds=deadline_s)
    store = None
    if process.local_rank() == 0:
        store = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        ports[worker] = store.port
    pushed = push_pull_async_inplace(ports, average=False, name="THC.host_port")
    port = int(synchronize(pushed, deadline_s)[worker])
    with _translated():
        store = store or TCPStore(_LOOPBACK, port, is_master=False, timeout=timeout)
        return [HostGroup(store, lane, deadline_s) for lane in range(lanes)]


def _open_gloo(store: Store, deadline_s: float) -> Any:
    group: Any = ProcessGroupGloo
    options = gloo_options(timedelta(seconds=deadline_s), _LOOPBACK)
    return group(store, process.local_rank(), process.local_size(), options)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise translate(error) from error
