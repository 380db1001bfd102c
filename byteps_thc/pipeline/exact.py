"""What of a buffer travels exactly: small parameters, or all of it in a step that is not compressed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from byteps_thc.pipeline.prepared_buffer import PreparedBuffer
from byteps_thc.transport.communicator import ExactSum, Waitable
from byteps_thc.transport.recorder import TrafficRecorder


@dataclass
class ExactPart:
    """values: float32, of this rank, then their sum over the ranks once `sum` is waited for; None: not started yet."""

    values: Tensor
    sum: Waitable | None = None

    def start(self, exact: ExactSum, recorder: TrafficRecorder, workers: int) -> None:
        """Start the sum; all ranks are known to have as many values, of the same parameters."""
        recorder.add_collective(2 * self.values.nbytes, workers)
        self.sum = exact(self.values)

    def wait(self) -> None:
        """Wait for the sum."""
        assert self.sum is not None
        self.sum.wait()


def take_exact(prepared: PreparedBuffer, gradient: Tensor, compress: bool) -> ExactPart | None:
    """Take it out of the gradient, where small parameters become zero like padding; None: there is nothing."""
    values = None
    if not compress:
        values = gradient.float()  # the same tensor when it is float32 already
    elif prepared.exact_index is not None:
        values = prepared.exact_values.copy_(gradient.index_select(0, prepared.exact_index))
    if compress and prepared.clear_index is not None:
        gradient.index_fill_(0, prepared.clear_index, 0.0)
    return None if values is None else ExactPart(values)


def finish_exact(
    part: ExactPart, prepared: PreparedBuffer, gradient: Tensor, compress: bool, workers: Tensor
) -> Tensor:
    """Put its average back once the sum is there, and return it. workers: float32[], how many."""
    # A tensor: torch multiplies by the inverse of a number on a GPU, which has other bits.
    average = part.values.div_(workers)
    if compress:
        assert prepared.exact_index is not None
        gradient.index_copy_(0, prepared.exact_index, average.to(gradient.dtype))
    elif average is not gradient:
        gradient.copy_(average)
    return average
