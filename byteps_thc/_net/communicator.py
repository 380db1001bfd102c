"""Process groups of the engines' own: collectives of one thread never wait for, or mix with, those of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch.distributed as dist

# Before there is a process group: its functions' default arguments would hold the group, whose threads then outlive
# destroy_process_group() and can abort the process at exit. torch.optim and torch.compile import it, some time.
import torch.distributed.nn.functional  # noqa: F401
from torch import Tensor

from byteps_thc._scheme.errors import DeadlineError, ThcError, TransportError

#: A back end of a process group, or its work: torch's stubs lack their methods.
Backend = Any
OptionsT = TypeVar("OptionsT")


class Waitable(Protocol):
    """A collective in flight."""

    def wait(self) -> None:
        """Wait until it is done; once. Raises TransportError or DeadlineError."""


#: Starts replacing a float32 tensor by its sum over the workers, exactly; in order of the calls.
ExactSum = Callable[[Tensor], Waitable]


class Asking(Protocol):
    """What ranks compare words with; all of them must start the same collectives in the same order."""

    def max_(self, tensor: Tensor) -> Waitable:
        """Start replacing every element by its maximum over the ranks. int32."""

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        """Start concatenating every rank's `source` in `output`. uint8."""


class Communicator(Asking, Protocol):
    """A stream of collectives, of host tensors but for nccl.DeviceCommunicator."""

    def sum_(self, tensor: Tensor) -> Waitable:
        """Start replacing every element by its sum over the ranks. float32, or int32, modulo 2^32: gloo's C++ wraps."""

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        """Start sending the r-th part of `source` to rank r; output[r] is what rank r sends here. uint8, flat, or of
        host tensors [ranks, bytes], whose rows may lie apart.
        """

    def broadcast(self, tensor: Tensor) -> Waitable:
        """Start replacing the tensor by that of rank 0. uint8."""


def translate(error: RuntimeError) -> ThcError:
    """What a back end's exception means: another rank was too late, or is gone."""
    text = str(error)
    late = "timed out" in text.lower() or "timeout" in text.lower()
    if late:
        return DeadlineError(
            "other ranks did not answer in time: read their logs. If one was busy, as with an evaluation or a "
            f"checkpoint, raise CompressionPolicy(deadline_s=...). {text}"
        )
    return TransportError(f"the connection to another rank is lost: read the log of the rank that has ended. {text}")


def from_rank_zero() -> dist.BroadcastOptions:
    """Options of a broadcast."""
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    return options


def on_current_stream(options: OptionsT) -> OptionsT:
    """Return options with which NCCL's collectives run on the current stream, where torch has that (2.8 and newer).

    Else they run on a stream of the group's own, which waits for the current one, and is waited for.
    """
    if hasattr(options, "asyncOp"):
        setattr(options, "asyncOp", False)  # noqa: B010
    return options


def reduction(operation: dist.ReduceOp.RedOpType) -> dist.AllreduceOptions:
    """Options of an all-reduce."""
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(operation)
    return options
