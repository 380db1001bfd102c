"""Gradients on their way: encode, send and receive, decode.

All-reduce where the network (or gloo) can add what is sent: fp32, fp16, bf16. All-gather for codecs, whose payloads
nobody can add: every rank receives and decodes those of all the others.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc.baselines.codec import Codec, EncodeContext
from byteps_thc.baselines.memory import Compensated, Memory
from byteps_thc.baselines.packed_parameters import PackedParameters
from byteps_thc.pipeline.dtypes import saturated
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.transport.communicator import Communicator, Waitable


class Delivery(Protocol):
    """Gradients that travel together. The methods are called in this order, encode and send by one thread."""

    def encode(self) -> None:
        """Read the gradients and make what is sent."""

    def send(self, communicator: Communicator, recorder: StatsRecorder) -> Waitable:
        """Start the collective; it may be left out when there is one worker."""

    def decode(self, out: Tensor, recorder: StatsRecorder) -> None:
        """Write the average to `out`, where the gradients were, or a row of it; the collective is over."""


class DenseDelivery(Delivery):
    """A whole buffer in one dtype, as torch's fp16_compress_hook and bf16_compress_hook do it.

    dtype: None for the gradient's own. The sum over the workers is made in that dtype, of gradients divided by their
    number.
    """

    def __init__(self, gradient: Tensor, dtype: torch.dtype | None, workers: int) -> None:
        self._gradient = gradient
        self._dtype = dtype or gradient.dtype
        self._workers = workers
        self._wire: Tensor

    @override
    def encode(self) -> None:
        """Convert and divide."""
        self._wire = self._gradient.to(self._dtype).div_(self._workers)

    @override
    def send(self, communicator: Communicator, recorder: StatsRecorder) -> Waitable:
        return _all_reduce(self._wire, communicator, self._workers, recorder)

    @override
    def decode(self, out: Tensor, recorder: StatsRecorder) -> None:
        """Convert back."""
        size = self._gradient.numel()
        narrowed = self._wire.element_size() < self._gradient.element_size()
        recorder.add_gradient(compressed=size if narrowed else 0, uncompressed=0 if narrowed else size)
        if self._wire is not self._gradient:
            out.copy_(saturated(self._wire, out.dtype))


class UncompressedDelivery(Delivery):
    """Parameters in fp32, of a scheme that compresses others, or in other steps."""

    def __init__(self, gradient: Tensor, parameters: PackedParameters, memory: Memory, workers: int) -> None:
        self._gradient = gradient
        self._parameters = parameters
        self._memory = memory
        self._workers = workers
        self._state: Compensated
        self._wire: Tensor

    @override
    def encode(self) -> None:
        """Let the memory have a look, and divide."""
        gradient = self._parameters.take(self._gradient)
        self._state = self._memory.compensate(gradient, self._parameters.spec, compressed=False)
        self._wire = self._state.vector / self._workers

    @override
    def send(self, communicator: Communicator, recorder: StatsRecorder) -> Waitable:
        return _all_reduce(self._wire, communicator, self._workers, recorder)

    @override
    def decode(self, out: Tensor, recorder: StatsRecorder) -> None:
        """Write the sum back."""
        recorder.add_gradient(uncompressed=self._parameters.spec.size)
        self._parameters.put(self._wire, out)
        if is_finite(self._wire):
            self._memory.keep(self._state, None)
        else:
            self._memory.rollback.request()


class CodecDelivery(Delivery):
    """Parameters as payloads of a codec."""

    def __init__(
        self,
        gradient: Tensor,
        parameters: PackedParameters,
        codec: Codec,
        memory: Memory,
        context: EncodeContext,
        workers: int,
    ) -> None:
        self._gradient = gradient
        self._parameters = parameters
        self._codec = codec
        self._memory = memory
        self._context = context
        self._workers = workers
        self._state: Compensated
        self._payload: Tensor
        self._payloads: Tensor

    @override
    def encode(self) -> None:
        """Add what was kept of earlier gradients, and encode."""
        spec = self._parameters.spec
        self._state = self._memory.compensate(self._parameters.take(self._gradient), spec, compressed=True)
        self._payload = self._codec.encode(self._state.vector, spec, self._context)

    @override
    def send(self, communicator: Communicator, recorder: StatsRecorder) -> Waitable:
        """Start gathering the payloads of all workers."""
        size = self._payload.numel()
        gathered = self._payload.new_empty(self._workers * size)
        recorder.add_collective(gathered.nbytes, self._workers)
        self._payloads = gathered.view(self._workers, size)
        return communicator.all_gather(gathered, self._payload)

    @override
    def decode(self, out: Tensor, recorder: StatsRecorder) -> None:
        """Decode all payloads, average, and keep what this worker's payload lacks."""
        spec, step = self._parameters.spec, self._context.step
        vectors = [self._codec.decode(payload, spec, step) for payload in self._payloads]
        average = self._codec.combine(vectors)
        self._parameters.put(average, out)
        recorder.add_gradient(compressed=spec.size)
        finite = is_finite(average)  # on all workers or on none: they have the same average
        if finite:
            self._memory.keep(self._state, vectors[self._context.worker])
        else:
            self._memory.rollback.request()
        residual = self._state.kept.get("residual")
        recorder.add_quantization(
            coordinates=spec.size,
            clamped=0,
            energy=energy_of(self._state.vector),
            lost_energy=energy_of(residual) if finite and residual is not None else None,
        )


def is_finite(vector: Tensor) -> bool:
    """Whether there is neither NaN nor infinity in it."""
    return bool(vector.isfinite().all())


def _all_reduce(tensor: Tensor, communicator: Communicator, workers: int, recorder: StatsRecorder) -> Waitable:
    recorder.add_collective(2 * tensor.nbytes, workers)
    return communicator.sum_(tensor)


def energy_of(vector: Tensor) -> float:
    """Return the squared Euclidean norm."""
    return float(torch.dot(vector, vector))
