"""How a gradient buffer is cut up: pieces that are compressed one by one, and parameters that travel exactly."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from byteps_thc.compressor import Compressor, Partition
from byteps_thc.config import ThcConfig
from byteps_thc.engines.buffers import GradientBuffer, ParameterSlice
from byteps_thc.engines.policy import CompressionPolicy
from byteps_thc.engines.residuals import Residuals
from byteps_thc.engines.staging import make_staging
from byteps_thc.engines.transport import Transfer, Transport
from byteps_thc.errors import InputError


@dataclass(frozen=True)
class Piece:
    """A part of a buffer that is compressed by itself; number: its random key."""

    number: int
    span: slice
    partition: Partition
    transfer: Transfer


class Layout:
    """Everything an engine keeps for buffers of one layout.

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
        self.residual: Tensor | None = None
        self.pieces: list[Piece] = []

    def prepare(self, compressor: Compressor, transport: Transport, residuals: Residuals) -> None:
        """Bring the parameters' residuals here and make the pieces, with a compressor of the layout's own."""
        self.compressor = compressor
        if compressor.config.error_feedback:
            self.residual = residuals.of(self.key, self.size, self.parameters)
        self.pieces = [
            self._piece(name, span, transport) for name, span in piece_spans(self.key, self.size, compressor.config)
        ]

    def _piece(self, name: str, span: slice, transport: Transport) -> Piece:
        coordinates = span.stop - span.start
        transfer = transport.new_transfer(*self.compressor.layout(coordinates))
        residual = None if self.residual is None else self.residual.numpy()[span]
        partition = self.compressor.partition(name, coordinates, residual=residual, codes=transfer.codes)
        return Piece(zlib.crc32(name.encode()), span, partition, transfer)


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


def piece_spans(key: str, size: int, config: ThcConfig) -> list[tuple[str, slice]]:
    """Return names and spans of the pieces of a buffer of `size` elements."""
    spans = even_spans(size, config.partition_coordinates, config.rotation_block)
    return [(f"{key}[{span.start}:{span.stop}]", span) for span in spans]


def even_spans(size: int, largest: int, multiple: int) -> list[slice]:
    """Cut 0 .. size into as few spans as possible, all about as long: a short last one would cost as much to send.

    largest: length of a span at most. Spans but the last are multiples of `multiple`, or of `largest` if that is less.
    """
    multiple = min(multiple, largest)
    multiples = -(-size // multiple)
    count = -(-multiples // (largest // multiple))
    cuts = [multiple * (multiples * i // count) for i in range(count)] + [size]
    return [slice(*cut) for cut in itertools.pairwise(cuts)]


def _index(spans: Iterable[tuple[int, int]]) -> Tensor | None:
    ranges = [torch.arange(start, stop) for start, stop in spans if stop > start]
    return torch.cat(ranges) if ranges else None


def _gaps(parameters: tuple[ParameterSlice, ...], size: int) -> list[tuple[int, int]]:
    edges = [0, *(edge for part in parameters for edge in (part.start, part.stop)), size]
    return list(zip(edges[::2], edges[1::2], strict=True))
