"""Parameters of a gradient buffer as one float32 vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from byteps_thc.baselines.codec import VectorSpec
from byteps_thc.pipeline.buffers import ParameterSlice
from byteps_thc.pipeline.dtypes import saturated


class PackedParameters:
    """Some parameters of a buffer, put together without gaps. key: names this selection of this buffer."""

    def __init__(self, key: str, parameters: Sequence[ParameterSlice]) -> None:
        self.spec = VectorSpec.packing(key, parameters)
        self._runs: list[slice] = []
        for parameter in parameters:
            if self._runs and self._runs[-1].stop == parameter.start:
                self._runs[-1] = slice(self._runs[-1].start, parameter.stop)
            else:
                self._runs.append(slice(parameter.start, parameter.stop))

    def take(self, gradient: Tensor) -> Tensor:
        """Return float32[spec.size], a copy."""
        return torch.cat([gradient[run] for run in self._runs]).to(torch.float32)

    def put(self, vector: Tensor, gradient: Tensor) -> None:
        """Write float32[spec.size] back to where take() found it."""
        start, vector = 0, saturated(vector, gradient.dtype)
        for run in self._runs:
            stop = start + run.stop - run.start
            gradient[run].copy_(vector[start:stop])
            start = stop
