"""Custom operators: what compiled programs call. torch.compile sees their effect and leaves their inside alone.

Only optimize_ddp="python_reducer" needs them, where the hook is part of the compiled backward pass. torch.compile's
default splits the graph at DDP's buckets and calls thc_hook as usual.
"""

import weakref
from typing import Protocol

import torch
from torch import Tensor


class Averager(Protocol):
    """What average_gradient needs of a hook's state."""

    def average_parameter(self, gradient: Tensor, parameter: Tensor) -> None:
        """Average the gradient of one parameter in place; returns when it is done."""


# Operators take tensors and numbers, so states go by a number. They live as long as their owners.
_averagers: weakref.WeakValueDictionary[int, Averager] = weakref.WeakValueDictionary()


def register_averager(averager: Averager) -> int:
    """Return the number that average_gradient knows it by."""
    number = id(averager)
    _averagers[number] = averager
    return number


# torch.compile(mode="reduce-overhead") leaves it out of CUDA graphs then. Older versions of torch, without the tag,
# record it, which engines refuse (pipeline/in_flight.py).
_TAGS = [tag] if (tag := getattr(torch.Tag, "cudagraph_unsafe", None)) is not None else None


@torch.library.custom_op("byteps_thc::average_gradient", mutates_args=("gradient",), tags=_TAGS)
def average_gradient(gradient: Tensor, parameter: Tensor, averager: int) -> None:
    """Average `gradient` over the ranks in place. averager: from register_averager()."""
    _averagers[averager].average_parameter(gradient, parameter)


@average_gradient.register_fake
def _average_gradient_fake(gradient: Tensor, parameter: Tensor, averager: int) -> None:
    """Shapes stay as they are."""
