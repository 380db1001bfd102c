"""BytePS's push_pull of one tensor: the sum or average over all processes, without the defects of 0.2.5.

Unlike in byteps.torch, a name's pushes alternate between two BytePS tensors, and a push waits for the last one of its
name (concurrent ones mix their sums, or crash). Nameless tensors get unique names. synchronize has a deadline.
"""

import hashlib
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from byteps_thc._base.environment import default_deadline_s
from byteps_thc._base.errors import ConfigurationError, DeadlineError, InputError
from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.library import byteps_operations, skip_shutdown_at_exit
from byteps_thc._net.byteps.process import pushed_names, running_operations, tensor_names
from byteps_thc._scheme.arithmetic import arithmetic_version, version_name

_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 20e-6, 1e-3


@dataclass
class Handle:
    """A push_pull in flight, or finished."""

    number: int
    name: str
    output: Tensor
    finished: bool = False


def declare(name: str) -> None:
    """Assign keys to `name`. All workers must declare, or push first, the same names in the same order."""
    operations = running_operations()
    for key in tensor_names(name):
        operations.declare(key)


def push_pull_async_inplace(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Handle:
    """Start adding up a tensor over all workers, in place.

    tensor: contiguous; uint8, int32, int64, float16, float32 or float64. All workers and all calls with a name use the
        same shape and dtype.
    average: divide by size(), default True; integers are rounded down.
    name: default: the number of the call.
    version: as in BytePS, default 0.
    priority: default 0; BytePS uses it with BYTEPS_SCHEDULING_CREDIT only.

    If the last push of the name is in flight, the call waits for it, at most THC_DEADLINE_S (default 600) seconds.

    Raises InputError for unsupported tensors and DeadlineError after the deadline.
    """
    if tensor.numel() == 0 or not tensor.is_contiguous():
        raise InputError("push_pull needs a tensor that is contiguous and not empty")
    name = pushed_names.make_name() if name is None else name
    declare(name)
    if (last := pushed_names.in_flight(name)) is not None:
        _wait(last, name, default_deadline_s())
    key = pushed_names.next_key(name, tensor)
    try:
        number = byteps_operations().push_pull_async_inplace(tensor, average, key, version, priority)
    except ValueError as error:
        raise InputError(f"BytePS cannot push {name!r}: {error}") from error
    pushed_names.started(name, number)
    return Handle(number, name, tensor)


def poll(handle: Handle) -> bool:
    """Return whether synchronize() would return at once."""
    return handle.finished or bool(byteps_operations().poll(handle.number))


def synchronize(handle: Handle, deadline_s: float | None = None) -> Tensor:
    """Wait for a push_pull and return its tensor. Repeated calls are allowed.

    handle: the result of a push_pull_async call.
    deadline_s: seconds; default: THC_DEADLINE_S, or 600.

    Raises DeadlineError after the deadline: a worker or server died or did not push this name. BytePS cannot cancel a
    push, so end the process afterwards.
    """
    if not handle.finished:
        _wait(handle.number, handle.name, default_deadline_s() if deadline_s is None else deadline_s)
        pushed_names.finished(handle.name, handle.number)
        byteps_operations().synchronize(handle.number)
        handle.finished = True
    return handle.output


def _wait(number: int, name: str, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    sleep_s = _SHORTEST_SLEEP_S
    while not byteps_operations().poll(number):
        if time.monotonic() > deadline:
            skip_shutdown_at_exit()
            raise DeadlineError(
                f"BytePS did not finish {name!r} within {wait_s:g} s: a server or another worker is gone, "
                "or did not push it; end this process"
            )
        time.sleep(sleep_s)
        sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)


def different_ranks(settings: object, deadline_s: float | None) -> list[int]:
    """Return the ranks whose settings differ, by repr(), from this process's; collective. deadline_s: of synchronize().

    Raises DeadlineError, and ConfigurationError on all processes if one has another version of the arithmetic.
    """
    hashed = hashlib.sha256(repr(settings).encode()).digest()
    digest = np.append(np.frombuffer(hashed, np.int32), np.int32(arithmetic_version()))
    rows = torch.zeros(process.size(), digest.size, dtype=torch.int32, device="cpu")
    rows.numpy()[process.rank()] = digest
    synchronize(push_pull_async_inplace(rows, average=False, name="THC.settings"), deadline_s)
    require_same_arithmetic(rows.numpy()[:, -1], process.rank())
    return [rank for rank, row in enumerate(rows.numpy()) if not np.array_equal(row, digest)]


def require_same_arithmetic(versions: npt.NDArray[np.int32], rank: int) -> None:
    """Raise ConfigurationError unless all processes have the same version as this process. versions: int32[ranks]."""
    own = int(versions[rank])
    others = {other: int(version) for other, version in enumerate(versions) if version != own}
    if others:
        names = ", ".join(f"{version_name(version)} on process {other}" for other, version in others.items())
        raise ConfigurationError(
            f"processes have different versions of byteps_thc's arithmetic: {version_name(own)} on this one ({rank}), "
            f"{names}. Install the same version of byteps_thc on the hosts of all workers"
        )
