"""Gradients on a GPU pass through pinned host memory, where the kernels work."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override


class Staging(Protocol):
    """Brings a gradient to the host and back."""

    def begin(self, gradient: Tensor) -> None:
        """Note that the gradient is complete once the current stream gets here. By the thread that computed it."""

    def fetch(self, gradient: Tensor) -> Tensor:
        """Return the gradient in host memory. By another thread."""

    def put_back(self, gradient: Tensor) -> None:
        """Overwrite the gradient by what the host tensor holds now; done on return."""


def make_staging(gradient: Tensor) -> Staging:
    """Return what gradients like this one need."""
    return PinnedStaging(gradient) if gradient.is_cuda else NoStaging()


class NoStaging(Staging):
    """For host tensors."""

    @override
    def begin(self, gradient: Tensor) -> None:
        pass

    @override
    def fetch(self, gradient: Tensor) -> Tensor:
        return gradient

    @override
    def put_back(self, gradient: Tensor) -> None:
        pass


class PinnedStaging(Staging):
    """For CUDA tensors: copies on a stream of its own, so that backward goes on meanwhile."""

    def __init__(self, gradient: Tensor) -> None:
        self._host = torch.empty_like(gradient, device="cpu", pin_memory=True)
        self._stream = torch.Stream(gradient.device)
        self._ready = torch.Event(gradient.device)

    @override
    def begin(self, gradient: Tensor) -> None:
        self._ready.record(torch.accelerator.current_stream(gradient.device))

    @override
    def fetch(self, gradient: Tensor) -> Tensor:
        with self._stream:
            self._stream.wait_event(self._ready)
            self._host.copy_(gradient, non_blocking=True)
        self._stream.synchronize()
        return self._host

    @override
    def put_back(self, gradient: Tensor) -> None:
        with self._stream:
            gradient.copy_(self._host, non_blocking=True)
        self._stream.synchronize()
