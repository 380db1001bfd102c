"""The stream on which an engine's kernels, copies and collectives run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_POLL_S = 1e-3


class SideStream:
    """A stream of its own beside that of backward, before which it is served; on the CPU there is none."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type != "cpu":
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @contextmanager
    def behind_current(self, *used: Tensor) -> Iterator[None]:
        """Make it the current stream, behind what is on the current one. used: tensors of others that it works on."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        self.uses(*used)
        with torch.cuda.stream(self._stream):
            yield

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the current stream of this thread, behind nothing but what is on it already."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def uses(self, *tensors: Tensor) -> None:
        """Keep the memory of others' tensors until what is on the stream by the time they go is done."""
        if self._stream is not None:
            for tensor in tensors:
                tensor.record_stream(self._stream)

    def wait(self) -> None:
        """Let this thread wait for what is on the stream by now, without a core of its own."""
        if self._stream is not None:
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(self._stream)
            done.synchronize()

    def wait_at_most(self, limit_s: float) -> None:
        """As wait(), but not longer than that: when the process is about to end, the device may never get there."""
        if self._stream is not None:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
            deadline_s = time.monotonic() + limit_s
            while not done.query() and time.monotonic() < deadline_s:  # type: ignore[no-untyped-call]
                time.sleep(_POLL_S)
