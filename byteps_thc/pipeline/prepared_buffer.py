"""What an engine keeps for gradient buffers of one layout: pieces to compress, and parameters that travel exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from byteps_thc.errors import InputError
from byteps_thc.pipeline.agreement import contents_of
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.in_flight import InFlight
from byteps_thc.pipeline.kernels import Kernels
from byteps_thc.pipeline.piece import PieceTools, PlacedPiece, make_pieces
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.residuals import Residuals
from byteps_thc.pipeline.rollback import Rollback
from byteps_thc.transport.recorder import TrafficRecorder


class PreparedBuffer:
    """Made of the first buffer of a layout, for all that follow. Tensors are on `device`, where the kernels work.

    exact_index: int64, elements of small parameters; None without any. exact_values: float32, room for them.
    clear_index: int64, elements whose residual stays zero: small parameters and padding; None without any.
    all_exact: nothing is large enough to be compressed. contents: what all ranks must have. residual: float32, of the
    buffer; None without error feedback.
    """

    def __init__(self, buffer: GradientBuffer, policy: CompressionPolicy, device: torch.device) -> None:
        self.key = buffer.key
        self.size = buffer.gradient.numel()
        self.parameters = buffer.parameters
        self.contents = contents_of(buffer.key, buffer.parameters)
        self.names = frozenset(parameter.name for parameter in buffer.parameters)
        small = [part for part in self.parameters if part.size < policy.bypass_elements]
        self.all_exact = len(small) == len(self.parameters)
        spans = [(part.start, part.stop) for part in small]
        self.exact_index = index_of(spans, device)
        self.exact_values = torch.zeros(sum(part.size for part in small), device=device)
        self.clear_index = index_of([*spans, *_gaps(self.parameters, self.size)], device)
        self.residual: Tensor | None = None

    def fits(self, buffer: GradientBuffer) -> bool:
        """Whether the buffer has this layout."""
        return self.size == buffer.gradient.numel() and self.parameters == buffer.parameters

    def clear_residual(self) -> None:
        """Forget what quantization made of padding and of what travelled exactly: it is no gradient."""
        if self.residual is not None and self.clear_index is not None:
            self.residual.index_fill_(0, self.clear_index, 0.0)


class StagedBuffer(PreparedBuffer):
    """For engines with pieces: how gradients get to the kernels, and the pieces once they are made."""

    def __init__(
        self, buffer: GradientBuffer, policy: CompressionPolicy, kernels: Kernels, recorder: TrafficRecorder
    ) -> None:
        super().__init__(buffer, policy, kernels.device)
        self._kernels = kernels
        self.staging = kernels.staging(buffer.gradient, recorder)
        self.pieces: list[PlacedPiece] = []

    def make_pieces(self, tools: PieceTools, residuals: Residuals[Any]) -> None:
        """Bring the parameters' residuals here and make the pieces."""
        feedback = tools.compressor.config.error_feedback
        kept = residuals.of(self.key, self.size, self.parameters) if feedback else None
        self.residual = None if kept is None else self._kernels.tensor(kept)
        label, layout = self.contents.label, self.contents.layout
        self.pieces = make_pieces(tools, self.key, self.size, kept, label=label, layout=layout)


PreparedT = TypeVar("PreparedT", bound=PreparedBuffer)


class PreparedBuffers(Generic[PreparedT]):
    """The prepared buffers of an engine, by key. make: of a buffer that has been checked."""

    def __init__(
        self, make: Callable[[GradientBuffer], PreparedT], in_flight: InFlight[Any], rollback: Rollback[Any]
    ) -> None:
        self._make, self._in_flight, self._rollback = make, in_flight, rollback
        self._known: dict[str, PreparedT] = {}

    def known(self, buffer: GradientBuffer) -> PreparedT | None:
        """Return that of a buffer, if there is one of its layout."""
        known = self._known.get(buffer.key)
        return known if known is not None and known.fits(buffer) else None

    def of(self, buffer: GradientBuffer) -> PreparedT:
        """Return that of a buffer; InputError where it cannot be averaged, or is in flight in another layout."""
        return self.known(buffer) or self._prepare(buffer)

    def clear(self) -> None:
        """Forget all: the residuals are other ones."""
        self._known.clear()

    def _prepare(self, buffer: GradientBuffer) -> PreparedT:
        check_buffer(buffer)
        names = {parameter.name for parameter in buffer.parameters}
        # A parameter lies in one buffer: those it was in before DDP rebuilt its buckets are gone.
        stale = {key for key, known in self._known.items() if key == buffer.key or known.names & names}
        if stale & self._in_flight.keys():
            raise InputError(f"buffer {buffer.key!r} has parameters of buffers in flight")
        if stale:
            # In the middle of a step that is protected, if ever: the rest of it is protected in its new place.
            self._rollback.release()
        prepared = self._make(buffer)
        for key in stale:
            del self._known[key]
        self._known[buffer.key] = prepared
        return prepared


def check_buffer(buffer: GradientBuffer) -> None:
    """Raise InputError unless the buffer is what GradientBuffer says."""
    gradient = buffer.gradient
    if gradient.dim() != 1 or not gradient.is_contiguous():
        raise InputError(f"gradient of buffer {buffer.key!r} is not a contiguous 1-D tensor")
    if gradient.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InputError(f"gradient of buffer {buffer.key!r} is {gradient.dtype}, not float32, float16 or bfloat16")
    position = 0
    for part in buffer.parameters:
        if not position <= part.start <= part.stop <= gradient.numel():
            raise InputError(f"slices of buffer {buffer.key!r} are not ascending and disjoint at {part}")
        position = part.stop


def index_of(spans: Iterable[tuple[int, int]], device: torch.device) -> Tensor | None:
    """Return the elements of the spans (start, stop), int64; None without any."""
    ranges = [torch.arange(start, stop, device=device) for start, stop in spans if stop > start]
    return torch.cat(ranges) if ranges else None


def _gaps(parameters: tuple[ParameterSlice, ...], size: int) -> list[tuple[int, int]]:
    edges = [0, *(edge for part in parameters for edge in (part.start, part.stop)), size]
    return list(zip(edges[::2], edges[1::2], strict=True))
