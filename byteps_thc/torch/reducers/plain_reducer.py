"""Averages gradients with BytePS's own push_pull: Compression.none, fp16, and what has their interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from byteps_thc._engine.statistics import CompressionStats, StatsRecorder
from byteps_thc._net.byteps.push_pull import Handle, declare, push_pull_async_inplace, synchronize
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc.torch.compression import GradientCompression
from byteps_thc.torch.parameters import NamedParameter


@dataclass
class _Push:
    gradient: Tensor
    handle: Handle
    context: Any


class PlainReducer:
    """One push_pull per parameter. Layers that the next forward pass needs first have the highest priority."""

    def __init__(self, parameters: Sequence[NamedParameter], compression: GradientCompression) -> None:
        self._compression = compression
        self._pushes: list[_Push] = []
        self._recorder = StatsRecorder()
        self._in_step = False
        for name in sorted(parameter.name for parameter in parameters):
            declare(f"Gradient.{name}")

    def push(self, parameter: NamedParameter) -> None:
        """Start averaging parameter.tensor.grad, which nobody may touch until finish().

        Called once in a round for every parameter, by one thread at a time.
        """
        if not self._in_step:
            self._in_step = True
            self._recorder.step_began()
        gradient = parameter.tensor.grad
        assert gradient is not None
        compressed, context = self._compression.compress(gradient)
        # BytePS has no bfloat16, and takes contiguous memory only.
        travels = (compressed.float() if compressed.dtype == torch.bfloat16 else compressed).contiguous()
        handle = push_pull_async_inplace(
            travels, average=True, name=f"Gradient.{parameter.name}", priority=-parameter.index
        )
        self._pushes.append(_Push(gradient, handle, (context, compressed.dtype)))
        self._recorder.add_gradient(uncompressed=gradient.numel())
        self._recorder.add_traffic(sent_bytes=travels.nbytes, received_bytes=travels.nbytes)

    def finish(self) -> None:
        """End the round: wait until every pushed gradient is the average. All parameters have been pushed."""
        for push in self._pushes:
            context, dtype = push.context
            average = self._compression.decompress(synchronize(push.handle).to(dtype), context)
            if average.data_ptr() != push.gradient.data_ptr():
                push.gradient.copy_(average)
        self._pushes.clear()
        self._in_step = False

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint of this worker needs beside the optimizer's state."""
        return {}  # these compressions keep no state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """ConfigurationError unless the state is empty."""
        if state:
            raise ConfigurationError("this state is of Compression.thc; Compression.none and fp16 have none")

    def statistics(self) -> CompressionStats:
        """Return what compression did and what it cost."""
        return self._recorder.snapshot()

    def close(self) -> None:
        """Leave the network. May be called again."""
        pass  # BytePS itself ends with shutdown()
