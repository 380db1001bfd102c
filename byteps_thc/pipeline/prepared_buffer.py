"""What an engine keeps for gradient buffers of one layout: pieces to compress, and parameters that travel exactly."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from byteps_thc.errors import InputError
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.piece import PieceTools, PlacedPiece, make_pieces
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.residuals import Residuals
from byteps_thc.pipeline.staging import make_staging


class PreparedBuffer:
    """Made of the first buffer of a layout, for all that follow.

    exact_index: int64, elements of small parameters; None without any. exact_values: float32, room for them.
    clear_index: int64, elements whose residual stays zero: small parameters and padding; None without any.
    all_exact: nothing is large enough to be compressed.
    """

    def __init__(self, buffer: GradientBuffer, policy: CompressionPolicy) -> None:
        self.key = buffer.key
        self.size = buffer.gradient.numel()
        self.parameters = buffer.parameters
        self.names = frozenset(parameter.name for parameter in buffer.parameters)
        self.staging = make_staging(buffer.gradient)
        small = [part for part in self.parameters if part.size < policy.bypass_elements]
        self.all_exact = len(small) == len(self.parameters)
        self.exact_index = _index((part.start, part.stop) for part in small)
        self.exact_values = torch.zeros(sum(part.size for part in small))
        self.clear_index = _index([*((part.start, part.stop) for part in small), *_gaps(self.parameters, self.size)])
        self.pieces: list[PlacedPiece] = []
        self._residual: Tensor | None = None

    def fits(self, buffer: GradientBuffer) -> bool:
        """Whether the buffer has this layout."""
        return self.size == buffer.gradient.numel() and self.parameters == buffer.parameters

    def make_pieces(self, tools: PieceTools, residuals: Residuals) -> None:
        """Bring the parameters' residuals here and make the pieces."""
        feedback = tools.compressor.config.error_feedback
        kept = residuals.of(self.key, self.size, self.parameters) if feedback else None
        self._residual = None if kept is None else torch.from_numpy(kept)
        self.pieces = make_pieces(tools, self.key, self.size, kept, label=_label(self.parameters))

    def clear_residual(self) -> None:
        """Forget what quantization made of padding and of what travelled exactly: it is no gradient."""
        if self._residual is not None and self.clear_index is not None:
            self._residual.index_fill_(0, self.clear_index, 0.0)


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


def _label(parameters: tuple[ParameterSlice, ...]) -> str:
    """What people know a buffer by: keys may be hashes."""
    first, last = parameters[0].name, parameters[-1].name
    return repr(first) if len(parameters) == 1 else f"the buffer of {first!r} to {last!r}"


def _index(spans: Iterable[tuple[int, int]]) -> Tensor | None:
    ranges = [torch.arange(start, stop) for start, stop in spans if stop > start]
    return torch.cat(ranges) if ranges else None


def _gaps(parameters: tuple[ParameterSlice, ...], size: int) -> list[tuple[int, int]]:
    edges = [0, *(edge for part in parameters for edge in (part.start, part.stop)), size]
    return list(zip(edges[::2], edges[1::2], strict=True))
