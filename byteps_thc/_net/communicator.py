"""The engines' communicators: collectives of one thread never wait for, or mix with, another thread's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist

# Imported before the first process group: its functions' default arguments would hold the group, whose threads then
# outlive destroy_process_group() and can abort the process at exit. torch.optim and torch.compile import it later.
import torch.distributed.nn.functional  # noqa: F401
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.errors import DeadlineError, ThcError, TransportError

#: A back end of a process group, or its work: torch's stubs lack their methods.
Backend = Any


class Waitable(Protocol):
    def wait(self) -> None:
        """Wait until it is done; once. Raises TransportError or DeadlineError."""


@dataclass(frozen=True)
class Followed(Waitable):
    """Work with more to do once it is done."""

    work: Waitable
    more: Callable[[], object]

    @override
    def wait(self) -> None:
        self.work.wait()
        self.more()


#: Starts replacing a float32 tensor by its exact sum over the workers; in order of the calls.
ExactSum = Callable[[Tensor], Waitable]


class Asking(Protocol):
    """Collectives that compare words of ranks; all ranks must start the same ones in the same order."""

    def max_(self, tensor: Tensor) -> Waitable:
        """Start replacing every element by its maximum over the ranks. int32."""

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        """Start concatenating every rank's `source` in `output`. uint8."""


class Communicator(Asking, Protocol):
    """A stream of collectives, of host tensors but for nccl.DeviceCommunicator."""

    def sum_(self, tensor: Tensor) -> Waitable:
        """Start replacing every element by its sum over the ranks. float32, or int32 modulo 2^32: gloo's C++ wraps."""

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        """Start sending the r-th part of `source` to rank r; output[r] comes from rank r. uint8, flat, or host tensors
        [ranks, bytes] with any row stride.
        """

    def broadcast(self, tensor: Tensor) -> Waitable:
        """Start replacing the tensor by rank 0's. uint8."""


def translate(error: RuntimeError) -> ThcError:
    """Return the library's error for a back end's exception: another rank was too late, or is gone."""
    text = str(error)
    if "timed out" in text.lower() or "timeout" in text.lower():
        return DeadlineError(
            "other ranks did not answer in time: read their logs. If one was busy, as with an evaluation or a "
            f"checkpoint, raise CompressionPolicy(deadline_s=...). {text}"
        )
    return TransportError(f"the connection to another rank is lost: read the log of the rank that has ended. {text}")


def reduction(operation: dist.ReduceOp.RedOpType) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(operation)
    return options
