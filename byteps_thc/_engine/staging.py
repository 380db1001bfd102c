"""Copies gradients to the kernels and back."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.arrays import U8, HostZeros
from byteps_thc._net.communicator import ExactSum, Followed, Waitable
from byteps_thc._net.transport import TrafficRecorder


class Staging(Protocol):
    def begin(self, gradient: Tensor) -> None:
        """Note that the gradient is complete once the current stream gets here. By the thread that computed it."""

    def fetch(self, gradient: Tensor) -> Tensor:
        """Return the complete gradient where the kernels work. Called by another thread."""

    def put_back(self, gradient: Tensor) -> None:
        """Overwrite the gradient by the current values of fetch()'s tensor."""


def make_staging(gradient: Tensor, stream: "SideStream", recorder: TrafficRecorder) -> Staging | None:
    """Return the staging of such gradients; None: not needed.

    stream: of the kernels, the current one in fetch() and put_back(). recorder: counts copies.
    """
    if gradient.device == stream.device:
        return InPlaceStaging(stream) if gradient.is_cuda else None
    if gradient.is_cuda and stream.device.type == "cpu":
        return PinnedStaging(gradient, recorder)
    return CopyStaging(gradient, stream, recorder)


class PinnedStaging(Staging):
    """For CUDA tensors and kernels in host memory: waits for copies on its own stream, so that backward overlaps."""

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

    def __init__(self, stream: "SideStream") -> None:
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

    def __init__(self, gradient: Tensor, stream: "SideStream", recorder: TrafficRecorder) -> None:
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


def staged(exact: ExactSum, recorder: TrafficRecorder) -> ExactSum:
    """Return sums of device tensors, made of sums of host tensors. A call waits for its tensor."""

    def start(tensor: Tensor) -> Waitable:
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)
        recorder.add(to_host_bytes=host.nbytes)

        def bring_back() -> None:
            tensor.copy_(host)
            recorder.add(to_device_bytes=host.nbytes)

        return Followed(exact(host), bring_back)

    return start


def pinned_zeros(device: torch.device) -> HostZeros:
    """Return an allocator of host arrays of zeros for copies to and from a device: pinned for a GPU."""
    return _pinned_zeros if device.type == "cuda" else np.zeros


def _pinned_zeros(size: int, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    dtype = np.dtype(dtype)
    # The array keeps the tensor alive.
    memory: U8 = torch.zeros(size * dtype.itemsize, dtype=torch.uint8, pin_memory=True, device="cpu").numpy()
    return memory.view(dtype)


_POLL_S = 1e-3


def has_streams(device: torch.device) -> bool:
    """Whether calls only put work on a stream of the device, and return before it is done."""
    return device.type == "cuda"


class Mark:
    """A place in the work on a device, behind all work before the last set(). On the CPU, no work is under way."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if has_streams(device) else None  # type: ignore[no-untyped-call]

    def set(self) -> None:
        """Move it behind the work of the current stream so far."""
        if self._event is not None:
            self._event.record()

    def make_stream_wait(self) -> None:
        """Put later work of the current stream behind it."""
        if self._event is not None:
            self._event.wait()

    def passes_within(self, limit_s: float) -> bool:
        """Wait for limit_s at most, and return whether the work is done: a device may never get there."""
        deadline_s = time.monotonic() + limit_s
        while self._event is not None and not self._event.query():  # type: ignore[no-untyped-call]
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_S)
        return True


class SideStream:
    """A high-priority stream beside backward's; none on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        if has_streams(device):
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @contextmanager
    def behind_current(self, *used: Tensor) -> Iterator[None]:
        """Make it the current stream, behind the current one. used: foreign tensors that it works on."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            self.uses(*used)
        with self.current():
            yield

    def current(self) -> AbstractContextManager[object]:
        """Make it the current stream of this thread, behind nothing else."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def uses(self, *tensors: Tensor) -> None:
        """Keep the memory of foreign tensors until the stream's work at the time of their end is done.

        The host may run ahead of the device, and memory then grows: a caller whose stream waits for the work, and that
        holds its tensors until then, needs no uses().
        """
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
        with self.current():
            done = Mark(self.device)
            done.set()
            done.passes_within(limit_s)
