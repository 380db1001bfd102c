"""Copies gradients to the kernels and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._net.communicator import ExactSum, Waitable
from byteps_thc._net.transport import TrafficRecorder
from byteps_thc._scheme.arrays import U8, HostZeros

_CPU = torch.device("cpu")


class Staging(Protocol):
    def begin(self, gradient: Tensor) -> None:
        """Note that the gradient is complete once the current stream gets here. By the thread that computed it."""

    def fetch(self, gradient: Tensor) -> Tensor:
        """Return the complete gradient where the kernels work. Called by another thread."""

    def put_back(self, gradient: Tensor) -> None:
        """Overwrite the gradient by the current values of fetch()'s tensor."""


def make_staging(gradient: Tensor, recorder: TrafficRecorder) -> Staging | None:
    """Return the staging of such gradients for kernels in host memory; None: not needed. recorder: counts copies."""
    return PinnedStaging(gradient, recorder) if gradient.is_cuda else None


def make_device_staging(gradient: Tensor, stream: SideStream, recorder: TrafficRecorder) -> Staging | None:
    """As make_staging(), for kernels on a device; their stream is the current one in fetch() and put_back()."""
    if gradient.device == stream.device:
        return InPlaceStaging(stream) if gradient.is_cuda else None
    return CopyStaging(gradient, stream, recorder)


class PinnedStaging(Staging):
    """For CUDA tensors and kernels in host memory: copies on its own stream, so that backward overlaps.

    put_back() returns once the average is there.
    """

    def __init__(self, gradient: Tensor, recorder: TrafficRecorder) -> None:
        self._recorder = recorder
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
        self._recorder.add(to_host_bytes=gradient.nbytes)
        return self._host

    @override
    def put_back(self, gradient: Tensor) -> None:
        with self._stream:
            gradient.copy_(self._host, non_blocking=True)
        self._stream.synchronize()
        self._recorder.add(to_device_bytes=gradient.nbytes)


class InPlaceStaging(Staging):
    """For CUDA tensors and kernels on the same GPU: no copies."""

    def __init__(self, stream: SideStream) -> None:
        self._stream = stream
        self._ready = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    @override
    def begin(self, gradient: Tensor) -> None:
        self._stream.uses(gradient)
        self._ready.record(torch.cuda.current_stream(gradient.device))

    @override
    def fetch(self, gradient: Tensor) -> Tensor:
        # The thread waits, not the stream, which decodes sums of earlier buffers meanwhile.
        self._ready.synchronize()
        return gradient

    @override
    def put_back(self, gradient: Tensor) -> None:
        pass


class CopyStaging(Staging):
    """For tensors in host memory or on another GPU, and kernels on a GPU; waits for both copies."""

    def __init__(self, gradient: Tensor, stream: SideStream, recorder: TrafficRecorder) -> None:
        self._stream, self._recorder = stream, recorder
        self._copy = torch.empty_like(gradient, device=stream.device)
        self._ready: torch.cuda.Event | None = None
        if gradient.is_cuda:
            self._ready = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._host_bytes = 0 if gradient.is_cuda else gradient.nbytes

    @override
    def begin(self, gradient: Tensor) -> None:
        if self._ready is not None:
            self._ready.record(torch.cuda.current_stream(gradient.device))

    @override
    def fetch(self, gradient: Tensor) -> Tensor:
        if self._ready is not None:
            self._ready.synchronize()
        self._copy.copy_(gradient)
        self._recorder.add(to_device_bytes=self._host_bytes)
        return self._copy

    @override
    def put_back(self, gradient: Tensor) -> None:
        gradient.copy_(self._copy)
        self._stream.wait()
        self._recorder.add(to_host_bytes=self._host_bytes)


class StagedSum:
    """An ExactSum of device tensors, made of one of host tensors."""

    def __init__(self, exact: ExactSum, recorder: TrafficRecorder) -> None:
        self._exact, self._recorder = exact, recorder

    def __call__(self, tensor: Tensor) -> Waitable:
        """Start replacing the tensor by its sum over the workers. Waits for the tensor."""
        host = torch.empty_like(tensor, device=_CPU, pin_memory=tensor.is_cuda).copy_(tensor)
        self._recorder.add(to_host_bytes=host.nbytes)
        return _SumUnderWay(self._exact(host), host, tensor, self._recorder)


@dataclass(frozen=True)
class _SumUnderWay(Waitable):
    work: Waitable
    host: Tensor
    tensor: Tensor
    recorder: TrafficRecorder

    @override
    def wait(self) -> None:
        self.work.wait()
        self.tensor.copy_(self.host)
        self.recorder.add(to_device_bytes=self.host.nbytes)


def pinned_zeros(device: torch.device) -> HostZeros:
    """Return an allocator of host arrays of zeros for copies to and from a device: pinned for a GPU."""
    return _pinned_zeros if device.type == "cuda" else np.zeros


def _pinned_zeros(size: int, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    dtype = np.dtype(dtype)
    # The array keeps the tensor alive.
    memory: U8 = torch.zeros(size * dtype.itemsize, dtype=torch.uint8, pin_memory=True, device="cpu").numpy()
    return memory.view(dtype)


_POLL_S = 1e-3


class SideStream:
    """A high-priority stream beside backward's; on the CPU there is none."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type != "cpu":
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @contextmanager
    def behind_current(self, *used: Tensor) -> Iterator[None]:
        """Make it the current stream, behind the current one. used: foreign tensors that it works on."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        self.uses(*used)
        with torch.cuda.stream(self._stream):
            yield

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the current stream of this thread, behind nothing else."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def uses(self, *tensors: Tensor) -> None:
        """Keep the memory of foreign tensors until the stream's work at the time of their end is done."""
        if self._stream is not None:
            for tensor in tensors:
                tensor.record_stream(self._stream)

    def wait(self) -> None:
        """Wait for the stream's work so far, without spinning."""
        if self._stream is not None:
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(self._stream)
            done.synchronize()

    def wait_at_most(self, limit_s: float) -> None:
        """As wait(), for limit_s at most: when the process is about to end, the device may never get there."""
        if self._stream is not None:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
            deadline_s = time.monotonic() + limit_s
            while not done.query() and time.monotonic() < deadline_s:  # type: ignore[no-untyped-call]
                time.sleep(_POLL_S)
