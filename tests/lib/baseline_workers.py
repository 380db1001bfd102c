"""Gradient buffers for tests of the baselines, and all workers of a scheme in one process as their oracle."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from byteps_thc.baselines.codec import EncodeContext, VectorSpec
from byteps_thc.baselines.config import CodecConfig
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice

#: Large and small parameters, a gap of padding, odd sizes.
BUFFERS = {
    "bucket0": (ParameterSlice("a", 0, 3001), ParameterSlice("b", 3001, 3101), ParameterSlice("c", 3104, 5104)),
    "bucket1": (ParameterSlice("d", 0, 1501),),
}


def buffer_of(key: str, step: int, rank: int) -> GradientBuffer:
    """The buffer of a rank in a step: random, and the same every time."""
    parameters = BUFFERS[key]
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + int(key[-1]))
    return GradientBuffer(key, torch.randn(parameters[-1].stop, generator=generator), parameters)


class Workers:
    """All workers of a scheme, whose parameters of fewer than `bypass` elements travel uncompressed."""

    def __init__(self, config: CodecConfig, workers: int, bypass: int) -> None:
        self.codec = config.codec()
        self.memories = [config.memory(workers) for _ in range(workers)]
        self.bypass = bypass
        self.round = 0

    def average(self, key: str, step: int) -> Tensor:
        """What every worker's buffer holds in the end, but for its padding, which is zero here."""
        buffers = [buffer_of(key, step, rank) for rank in range(len(self.memories))]
        average = torch.zeros(buffers[0].gradient.numel())
        large = [part for part in BUFFERS[key] if part.size >= self.bypass]
        small = [part for part in BUFFERS[key] if part.size < self.bypass]
        _write(average, large, self._compressed(f"{key}/True/True", large, step, buffers))
        if small:
            _write(average, small, self._exact(f"{key}/True/False", small, buffers))
        self.round += 1
        return average

    def sent_bytes(self, step: int) -> int:
        """What each worker sends in a step: its payload to every other one; a ring's share of the fp32 rest."""
        others, sent = len(self.memories) - 1, 0
        for key, parameters in BUFFERS.items():
            large = {part.name: part.size for part in parameters if part.size >= self.bypass}
            exact = sum(part.size for part in parameters) - sum(large.values())
            sent += others * self.codec.payload_bytes(VectorSpec.of(key, large), step)
            sent += 2 * others * 4 * exact // len(self.memories)
        return sent

    def _compressed(
        self, key: str, parts: Sequence[ParameterSlice], step: int, buffers: Sequence[GradientBuffer]
    ) -> Tensor:
        spec = VectorSpec.of(key, {part.name: part.size for part in parts})
        decoded = []
        for worker, (memory, buffer) in enumerate(zip(self.memories, buffers, strict=True)):
            state = memory.compensate(_read(buffer.gradient, parts), spec, compressed=True)
            payload = self.codec.encode(state.vector, spec, EncodeContext(worker=worker, round=self.round, step=step))
            decoded.append(self.codec.decode(payload, spec, step))
            memory.keep(state, decoded[-1])
        return self.codec.combine(decoded)

    def _exact(self, key: str, parts: Sequence[ParameterSlice], buffers: Sequence[GradientBuffer]) -> Tensor:
        spec = VectorSpec.of(key, {part.name: part.size for part in parts})
        total = torch.zeros(spec.size)
        for memory, buffer in zip(self.memories, buffers, strict=True):
            state = memory.compensate(_read(buffer.gradient, parts), spec, compressed=False)
            memory.keep(state, None)
            total += state.vector / len(buffers)
        return total


def _read(vector: Tensor, parts: Sequence[ParameterSlice]) -> Tensor:
    return torch.cat([vector[part.start : part.stop] for part in parts])


def _write(vector: Tensor, parts: Sequence[ParameterSlice], values: Tensor) -> None:
    for part, value in zip(parts, values.split([part.size for part in parts]), strict=True):
        vector[part.start : part.stop] = value
