"""BytePS in this process: its state, and this process's place among the others."""

import gc
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from threading import Event
from types import ModuleType
from weakref import WeakSet

import torch
from torch import Tensor

from byteps_thc._base.environment import default_deadline_s
from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._net.byteps.library import byteps_operations, run_with_deadline, shut_down_at_exit
from byteps_thc._net.ending import collect_forgotten

#: BytePS aborts the process without them. bpslaunch sets the first two, and gets the others from its environment.
_LAUNCH_VARIABLES = ("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "DMLC_WORKER_ID", "DMLC_NUM_WORKER")


def tensor_names(name: str) -> tuple[str, str]:
    """Return the names of the two BytePS tensors that pushes of `name` alternate between."""
    # With one name, BytePS 0.2.5 lets a worker's next push overwrite a sum that a slower worker has not pulled yet.
    return name, f"{name}#odd"


class TensorNames:
    """The BytePS tensor of each name's next push, pushes in flight, and names for nameless tensors."""

    def __init__(self) -> None:
        self._pushes: defaultdict[str, int] = defaultdict(int)
        self._kinds: dict[str, tuple[int, torch.dtype]] = {}
        self._in_flight: dict[str, int] = {}
        self._unnamed = 0

    def next_key(self, name: str, tensor: Tensor) -> str:
        """Return the BytePS tensor of the name's next push. Raises InputError if the name had another size or dtype."""
        kind = tensor.numel(), tensor.dtype
        known = self._kinds.setdefault(name, kind)
        if known != kind:  # would crash BytePS's processes
            raise InputError(f"{name!r} had {known[0]} elements of {known[1]} before, and now {kind[0]} of {kind[1]}")
        self._pushes[name] += 1
        return tensor_names(name)[self._pushes[name] % 2]

    def started(self, name: str, handle: int) -> None:
        self._in_flight[name] = handle

    def in_flight(self, name: str) -> int | None:
        """Return the handle of the name's last push; None if it was synchronized."""
        return self._in_flight.get(name)

    def finished(self, name: str, handle: int) -> None:
        """Note that a push was synchronized: its handle is invalid."""
        if self._in_flight.get(name) == handle:
            del self._in_flight[name]

    def make_name(self) -> str:
        self._unnamed += 1
        return f"unnamed.{self._unnamed}"

    def clear(self) -> None:
        """Count from zero, like a worker that joins when BytePS starts again."""
        self._pushes.clear()
        self._kinds.clear()
        self._in_flight.clear()
        self._unnamed = 0


class Claim:
    """Things of one holder, until release() or until the holder is garbage."""

    def __init__(self) -> None:
        self.things: set[Hashable] = set()

    def add(self, things: Collection[Hashable]) -> None:
        self.things.update(things)

    def release(self) -> None:
        self.things.clear()


class Claims:
    def __init__(self) -> None:
        self._claims: WeakSet[Claim] = WeakSet()

    def open(self) -> Claim:
        """Return an empty claim, after dropping the claims of garbage: workers must find the same claims."""
        if self._claims:
            gc.collect()
            collect_forgotten()  # claims are released in threads
        claim = Claim()
        self._claims.add(claim)
        return claim

    def taken(self, things: Collection[Hashable]) -> list[Hashable]:
        return [thing for thing in things if any(thing in claim.things for claim in self._claims)]

    def clear(self) -> None:
        for claim in self._claims:
            claim.release()


#: The package's knowledge of BytePS, which is one per process.
_running = Event()
pushed_names, claims = TensorNames(), Claims()


def running_operations() -> ModuleType:
    """Return BytePS's operations; ConfigurationError before init(), where BytePS would claim to have one worker."""
    if not _running.is_set():
        raise ConfigurationError("BytePS has not been initialized: call bps.init() before")
    return byteps_operations()


def init(lazy: bool = True) -> None:
    """Start BytePS with the environment as it is. lazy: as in byteps_thc.torch.init(), which has the errors, too.

    Raises ConfigurationError in a process that bpslaunch has not started.
    """
    if missing := [name for name in _LAUNCH_VARIABLES if not os.environ.get(name)]:
        raise ConfigurationError(
            f"{', '.join(missing)} not set: start a BytePS training with bpslaunch, not with torchrun or python alone, "
            "beside its scheduler and servers. docs/byteps.md, 'Start it', has the commands"
        )
    operations = byteps_operations()
    try:
        if lazy:  # BytePS chooses this thread's GPU
            operations.init(True)
        else:
            _connect(lambda: operations.init(False))
    finally:
        shut_down_at_exit()
    _running.set()


def shutdown() -> None:
    """Stop BytePS. Python calls it at exit, too."""
    _stop(byteps_operations().shutdown)


def suspend() -> None:
    """Stop BytePS until resume(), for elastic training. Close THC optimizers first."""
    _stop(byteps_operations().suspend)


def resume(num_workers: int, num_servers: int, global_rank: int) -> None:
    """Start BytePS again with other numbers of workers and servers. Make a new DistributedOptimizer afterwards.

    num_workers: number of worker processes.
    num_servers: number of BytePS servers.
    global_rank: this worker's number, 0 .. num_workers - 1.
    """
    operations = byteps_operations()
    _connect(lambda: operations.resume(num_workers, num_servers, global_rank))
    _running.set()


def _stop(call: Callable[[], object]) -> None:
    run_with_deadline(call, "shut down", default_deadline_s())
    _running.clear()
    pushed_names.clear()
    claims.clear()


def _connect(call: Callable[[], object]) -> None:
    run_with_deadline(call, "connect to all workers and servers", default_deadline_s())
    if torch.cuda.is_available():  # BytePS has chosen the GPU for another thread, its caller's
        torch.cuda.set_device(int(byteps_operations().local_rank()))


def size() -> int:
    """Return the number of training processes.

    Raises ConfigurationError before init(), as local_size(), rank() and local_rank() do.
    """
    return int(running_operations().size())


def local_size() -> int:
    """Return the number of training processes on this host."""
    return int(running_operations().local_size())


def rank() -> int:
    """Return this process's number, 0 .. size() - 1."""
    return int(running_operations().rank())


def local_rank() -> int:
    """Return this process's number on its host, 0 .. local_size() - 1."""
    return int(running_operations().local_rank())


def workers() -> int:
    """Return the number of BytePS workers: hosts, or parts of hosts, that bpslaunch was started for."""
    return size() // local_size()


def worker() -> int:
    """Return the number of this process's BytePS worker, 0 .. workers() - 1."""
    return rank() // local_size()
