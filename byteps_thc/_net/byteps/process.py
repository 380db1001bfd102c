"""BytePS in this process: whether it runs, and this process's place among the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import ModuleType

import torch

from byteps_thc._net.byteps.claims import Claims
from byteps_thc._net.byteps.deadline import run_with_deadline
from byteps_thc._net.byteps.library import byteps_operations
from byteps_thc._net.byteps.shutdown import shut_down_at_exit
from byteps_thc._net.byteps.tensor_names import TensorNames
from byteps_thc._scheme.environment import default_deadline_s
from byteps_thc._scheme.errors import ConfigurationError

#: What BytePS aborts the process without. bpslaunch sets the first two, and is told the others.
_LAUNCH_VARIABLES = ("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "DMLC_WORKER_ID", "DMLC_NUM_WORKER")


class _Process:
    """What this package knows of BytePS, which is one per process, and so is this."""

    def __init__(self) -> None:
        self.running = False
        self.names = TensorNames()
        self.claims = Claims()

    def started(self) -> None:
        self.running = True

    def stopped(self) -> None:
        self.running = False
        self.names.clear()
        self.claims.clear()


_process = _Process()


def running_operations() -> ModuleType:
    """Return BytePS's operations; ConfigurationError when it does not run, where BytePS says it has one worker."""
    if not _process.running:
        raise ConfigurationError("BytePS has not been initialized; use bps.init()")
    return byteps_operations()


def pushed_names() -> TensorNames:
    """Return the names that this process has pushed since BytePS was started."""
    return _process.names


def claims() -> Claims:
    """Return what the optimizers of this process have for themselves since BytePS was started."""
    return _process.claims


def init(lazy: bool = True) -> None:
    """Start BytePS in this process, with the environment as it is.

    lazy: connect to the servers with the first push_pull instead of now. Otherwise, and in shutdown, suspend and
    resume, DeadlineError when others are not there within default_deadline_s(). ConfigurationError in a process that
    bpslaunch has not started.
    """
    _require_launched(os.environ)
    operations = byteps_operations()
    try:
        if lazy:  # in this thread, for which BytePS chooses the GPU
            operations.init(True)
        else:
            _connect(lambda: operations.init(False))
    finally:
        shut_down_at_exit()
    _process.started()


def shutdown() -> None:
    """Stop BytePS. Python does it at exit, too."""
    run_with_deadline(byteps_operations().shutdown, "shut down", default_deadline_s())
    _process.stopped()


def suspend() -> None:
    """Stop BytePS until resume(), for elastic training; close THC optimizers first."""
    run_with_deadline(byteps_operations().suspend, "shut down", default_deadline_s())
    _process.stopped()


def resume(num_workers: int, num_servers: int, global_rank: int) -> None:
    """Start BytePS again with other numbers of workers and servers. Make a new DistributedOptimizer then."""
    operations = byteps_operations()
    _connect(lambda: operations.resume(num_workers, num_servers, global_rank))
    _process.started()


def _require_launched(environment: Mapping[str, str]) -> None:
    if missing := [name for name in _LAUNCH_VARIABLES if not environment.get(name)]:
        raise ConfigurationError(
            f"{', '.join(missing)} not set: start a BytePS training with bpslaunch, not with torchrun or python alone, "
            "beside its scheduler and servers. docs/plugins.md, 'Starting a BytePS training', has the commands"
        )


def _connect(call: Callable[[], object]) -> None:
    run_with_deadline(call, "connect to all workers and servers", default_deadline_s())
    if torch.cuda.is_available():  # BytePS has chosen the GPU of its caller's thread, which was another one
        torch.cuda.set_device(int(byteps_operations().local_rank()))


def size() -> int:
    """Return the number of training processes. Before init(), this and all below raise ConfigurationError."""
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
