"""BytePS's operations with the signatures of byteps.torch, without the defects of 0.2.5.

What differs from byteps.torch:
- A name's pushes alternate between two BytePS tensors. The server of 0.2.5 lets a fast worker's next push overwrite a
  sum that a slower worker has not pulled yet; with two keys, nobody can be two pushes ahead.
- push_pull and push_pull_async do not return uninitialised memory for CPU tensors.
- Tensors without a name get names of their own, in order of the calls.
- synchronize has a deadline.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from byteps_thc.config import ThcConfig
from byteps_thc.errors import ConfigurationError, DeadlineError, InputError
from byteps_thc.torch import ending
from byteps_thc.torch.byteps_library import byteps_operations
from byteps_thc.torch.compression import Compression, GradientCompression
from byteps_thc.torch.servers_environment import prepare_environment

#: Seconds that synchronize() waits, when THC_DEADLINE_S is not set.
DEFAULT_DEADLINE_S = 600.0
_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 20e-6, 1e-3


@dataclass
class Handle:
    """A push_pull in flight, or finished."""

    number: int
    name: str
    output: Tensor
    finished: bool = False


class _Process:
    """Whether BytePS runs, and which of its two tensors a name uses next. BytePS is one per process, and so is this."""

    def __init__(self) -> None:
        self.running = False
        self._pushes: defaultdict[str, int] = defaultdict(int)
        self._kinds: dict[str, tuple[int, torch.dtype]] = {}
        self._unnamed = 0

    def next_key(self, name: str, tensor: Tensor) -> str:
        """InputError when the name had another size or dtype before, which would crash BytePS's processes."""
        kind = tensor.numel(), tensor.dtype
        known = self._kinds.setdefault(name, kind)
        if known != kind:
            raise InputError(f"{name!r} had {known[0]} elements of {known[1]} before, and now {kind[0]} of {kind[1]}")
        self._pushes[name] += 1
        return tensor_names(name)[self._pushes[name] % 2]

    def make_name(self) -> str:
        self._unnamed += 1
        return f"unnamed.{self._unnamed}"

    def started(self) -> None:
        self.running = True

    def stopped(self) -> None:
        """Count from zero when BytePS starts again, as a worker does that joins then."""
        self.running = False
        self._pushes.clear()
        self._kinds.clear()
        self._unnamed = 0

    def require_running(self) -> Any:
        """Return BytePS's operations; ConfigurationError when it does not run, where BytePS says it has one worker."""
        if not self.running:
            raise ConfigurationError("BytePS has not been initialized; use bps.init()")
        return byteps_operations()


_process = _Process()


def tensor_names(name: str) -> tuple[str, str]:
    """Return the names of the two BytePS tensors that pushes of `name` alternate between."""
    return name, f"{name}#odd"


def init(lazy: bool = True) -> None:
    """Start BytePS in this process; its role and peers are in the environment that bpslaunch sets.

    lazy: connect to the servers with the first push_pull instead of now. This, shutdown, suspend and resume raise
    DeadlineError when others are not there within THC_DEADLINE_S, or 600, seconds.
    """
    with suppress(ConfigurationError):  # the servers route checks the environment when it is chosen
        prepare_environment(ThcConfig().resolve(int(os.environ.get("DMLC_NUM_WORKER", "1"))))
    operations = byteps_operations()
    try:
        if lazy:  # in this thread, for which BytePS chooses the GPU
            operations.init(True)
        else:
            _connect(lambda: operations.init(False))
    finally:
        ending.shut_down_at_exit()
    _process.started()


def shutdown() -> None:
    """Stop BytePS. Python does it at exit, too."""
    ending.in_time(byteps_operations().shutdown, "shut down", default_deadline_s())
    _process.stopped()


def suspend() -> None:
    """Stop BytePS until resume(), for elastic training; close THC optimizers first."""
    ending.in_time(byteps_operations().suspend, "shut down", default_deadline_s())
    _process.stopped()


def resume(num_workers: int, num_servers: int, global_rank: int) -> None:
    """Start BytePS again with other numbers of workers and servers. Make a new DistributedOptimizer then."""
    operations = byteps_operations()
    _connect(lambda: operations.resume(num_workers, num_servers, global_rank))
    _process.started()


def _connect(call: Callable[[], object]) -> None:
    ending.in_time(call, "connect to all workers and servers", default_deadline_s())
    if torch.cuda.is_available():  # BytePS has chosen the GPU of its caller's thread, which was another one
        torch.cuda.set_device(int(byteps_operations().local_rank()))


def size() -> int:
    """Return the number of training processes. Before init(), this and all below raise ConfigurationError."""
    return int(_process.require_running().size())


def local_size() -> int:
    """Return the number of training processes on this host."""
    return int(_process.require_running().local_size())


def rank() -> int:
    """Return this process's number, 0 .. size() - 1."""
    return int(_process.require_running().rank())


def local_rank() -> int:
    """Return this process's number on its host, 0 .. local_size() - 1."""
    return int(_process.require_running().local_rank())


def workers() -> int:
    """Return the number of BytePS workers: hosts, or parts of hosts, that bpslaunch was started for."""
    return size() // local_size()


def worker() -> int:
    """Return the number of this process's BytePS worker, 0 .. workers() - 1."""
    return rank() // local_size()


def declare(name: str) -> None:
    """Give `name` its keys. Names must be declared, or pushed first, in the same order on all workers."""
    operations = _process.require_running()
    for key in tensor_names(name):
        operations.declare(key)


def push_pull_async_inplace(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Handle:
    """Start adding up a tensor over all workers, in place.

    tensor: contiguous; uint8, int32, int64, float16, float32 or float64, of the same shape and dtype on all workers and
    in all calls with that name. average: divide by size(); integers are rounded down. name: None numbers the calls.
    priority counts with BYTEPS_SCHEDULING_CREDIT only. Raises InputError.
    """
    if tensor.numel() == 0 or not tensor.is_contiguous():
        raise InputError("push_pull needs a tensor that is contiguous and not empty")
    name = _process.make_name() if name is None else name
    declare(name)
    key = _process.next_key(name, tensor)
    try:
        number = byteps_operations().push_pull_async_inplace(tensor, average, key, version, priority)
    except ValueError as error:
        raise InputError(f"BytePS cannot push {name!r}: {error}") from error
    return Handle(number, name, tensor)


def push_pull_async(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Handle:
    """Start adding up a tensor over all workers; the tensor stays as it is. See push_pull_async_inplace."""
    # BytePS leaves the output of CPU tensors uninitialised unless it is the input.
    return push_pull_async_inplace(tensor.detach().clone(), average, name, version, priority)


def push_pull_inplace(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Tensor:
    """Add up a tensor over all workers, in place, and return it. See push_pull_async_inplace."""
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority))


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: GradientCompression = Compression.none,
) -> Tensor:
    """Return the sum or average of a tensor over all workers; gradients flow through it.

    name is required (InputError), as in BytePS. compression: Compression.none or fp16; THC keeps state for each
    parameter and belongs into a DistributedOptimizer (ConfigurationError).
    """
    if name is None:
        raise InputError("push_pull needs name=..., the same on all workers")
    if not hasattr(compression, "compress"):
        raise ConfigurationError(
            "push_pull takes Compression.none or fp16; give Compression.thc to DistributedOptimizer"
        )
    compressed, context = compression.compress(tensor)
    summed = _PushPull.apply(compressed, average, name, version, priority)  # type: ignore[no-untyped-call]
    return compression.decompress(summed, context)


class _PushPull(torch.autograd.Function):
    """The gradient of a sum over the workers is the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, average: bool, name: str, version: int, priority: int) -> Tensor:
        ctx.arguments = average, name, version, priority
        return synchronize(push_pull_async(tensor.contiguous(), average, name, version, priority))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        average, name, version, priority = ctx.arguments
        pushed = push_pull_async(gradients[0].contiguous(), average, f"{name}.gradient", version, priority)
        return synchronize(pushed), None, None, None, None


def poll(handle: Handle) -> bool:
    """Return whether synchronize() would return at once."""
    return handle.finished or bool(byteps_operations().poll(handle.number))


def synchronize(handle: Handle, deadline_s: float | None = None) -> Tensor:
    """Wait for a push_pull and return its tensor; may be called again.

    deadline_s: seconds; None: the environment variable THC_DEADLINE_S, or 600. DeadlineError when it takes longer: a
    worker or server is dead or did not push this name. BytePS cannot take a push back: end the process then.
    """
    wait_s = default_deadline_s() if deadline_s is None else deadline_s
    deadline = time.monotonic() + wait_s
    sleep_s = _SHORTEST_SLEEP_S
    while not poll(handle):
        if time.monotonic() > deadline:
            ending.abandon()
            raise DeadlineError(
                f"BytePS did not finish {handle.name!r} within {wait_s:g} s: a server or another worker is gone, "
                "or did not push it; end this process"
            )
        time.sleep(sleep_s)
        sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)
    if not handle.finished:
        byteps_operations().synchronize(handle.number)
        handle.finished = True
    return handle.output


def default_deadline_s() -> float:
    """Seconds of THC_DEADLINE_S, or 600; ConfigurationError when it is not a positive number."""
    text = os.environ.get("THC_DEADLINE_S", str(DEFAULT_DEADLINE_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigurationError(f"THC_DEADLINE_S must be a number of seconds, not {text!r}")
    return seconds
