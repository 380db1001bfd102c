"""Gradients of one layout: a matrix of rows x columns with named parameters, some of which travel exactly.

An all-reduce has one row, a reduce-scatter one for every rank. What is kept for a layout: where its parameters lie,
their residuals, and the pieces that compress them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from byteps_thc.errors import InputError
from byteps_thc.pipeline.agreement import Contents, contents_of
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.in_flight import InFlight
from byteps_thc.pipeline.piece import Extent, PlacedPiece, Round
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.shard_matrix import ShardMatrix
from byteps_thc.pipeline.staging import Staging
from byteps_thc.transport.communicator import ExactSum, Waitable

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class ExactPart:
    """What of a gradient travels exactly. values: float32[..., n], of this rank, then their sum over the ranks once
    `sum` is waited for; None: not started yet. whole: it is all of the gradient.
    """

    values: Tensor
    whole: bool
    sum: Waitable | None = None

    def start(self, exact: ExactSum) -> None:
        """Start the sum; all ranks are known to have as many values, of the same parameters."""
        self.sum = exact(self.values)

    def wait(self) -> None:
        """Wait for the sum."""
        assert self.sum is not None
        self.sum.wait()


class Layout:
    """Made of the first gradient of its kind, for all that follow. Tensors are on `device`, where the kernels work.

    parameters: those with residuals, in the flat gradient. compressed: elements of them that travel compressed. exact:
    columns (start, stop) that travel exactly. cleared: spans of the flat gradient that are not compressed, padding
    included. all_exact: nothing is large enough to be compressed. staging: how gradients get to the kernels. pieces: of
    a gradient in a round, to be asked for in every one. pieces_carry_all: nothing travels beside them.
    """

    def __init__(
        self,
        extent: Extent,
        contents: Contents,
        parameters: tuple[ParameterSlice, ...],
        *,
        compressed: int,
        exact: Sequence[tuple[int, int]],
        cleared: Sequence[tuple[int, int]],
        device: torch.device,
        staging: Staging,
    ) -> None:
        self.extent, self.contents, self.parameters = extent, contents, parameters
        self.key, self.rows, self.columns = extent.key, extent.rows, extent.columns
        self.size = extent.rows * extent.columns
        self.names = frozenset(parameter.name for parameter in parameters)
        self.compressed, self.all_exact = compressed, not compressed
        self.staging = staging
        self._exact_index = _index(exact, device)
        self._clear_index = _index(cleared, device)
        self._exact_values: Tensor | None = None
        self.residual: Tensor | None = None
        self.pieces: Callable[[Round], Iterable[PlacedPiece]] = lambda _: ()
        self.pieces_carry_all = False

    @classmethod
    def of_buffer(
        cls, buffer: GradientBuffer, policy: CompressionPolicy, device: torch.device, staging: Staging
    ) -> Layout:
        """Return that of a buffer; InputError unless it is what GradientBuffer says."""
        check_buffer(buffer)
        size = buffer.gradient.numel()
        small = [(part.start, part.stop) for part in buffer.parameters if part.size < policy.bypass_elements]
        contents = contents_of(buffer.key, buffer.parameters)
        return cls(
            Extent(buffer.key, 1, size, sharded=False, label=contents.label, layout=contents.layout),
            contents,
            buffer.parameters,
            compressed=size - sum(stop - start for start, stop in small) if len(small) < len(buffer.parameters) else 0,
            exact=small,
            cleared=[*small, *_gaps(buffer.parameters, size)],
            device=device,
            staging=staging,
        )

    @classmethod
    def of_matrix(cls, matrix: ShardMatrix, device: torch.device, staging: Staging) -> Layout:
        """Return that of a gradient with a row for every rank."""
        contents = Contents(repr(matrix.key), matrix.parameters)
        return cls(
            Extent(matrix.key, matrix.rows, matrix.columns, sharded=True, label=contents.label, layout=contents.layout),
            contents,
            matrix.compressed,
            compressed=sum(part.size for part in matrix.compressed),
            exact=matrix.exact,
            cleared=[(gap.start, gap.stop) for gap in matrix.gaps],
            device=device,
            staging=staging,
        )

    def take_exact(self, gradient: Tensor, compress: bool) -> ExactPart | None:
        """Take out what travels exactly, and make it and padding zero; None: there is nothing."""
        if not compress:
            return ExactPart(gradient.float(), whole=True)  # the same tensor when it is float32 already
        part = None
        if self._exact_index is not None:
            rows = gradient.view(self.rows, self.columns) if self.rows > 1 else gradient
            taken = rows.index_select(-1, self._exact_index)
            if self._exact_values is None:
                self._exact_values = torch.zeros(taken.shape, device=taken.device)
            part = ExactPart(self._exact_values.copy_(taken), whole=False)
        if self._clear_index is not None:
            gradient.index_fill_(0, self._clear_index, 0.0)
        return part

    def put_exact(self, part: ExactPart, out: Tensor, row: int, workers: Tensor) -> None:
        """Write the average of a row of it; the sum is there. workers: float32[], how many."""
        # A tensor: torch multiplies by the inverse of a number on a GPU, which has other bits.
        average = part.values.div_(workers)
        if not part.whole:
            assert self._exact_index is not None
            own = average[row] if self.rows > 1 else average
            out.index_copy_(0, self._exact_index, own.to(out.dtype))
        elif average is not out:
            out.copy_(average)

    def clear_residual(self) -> None:
        """Forget what quantization made of padding and of what travelled exactly: it is no gradient."""
        if self.residual is not None and self._clear_index is not None:
            self.residual.index_fill_(0, self._clear_index, 0.0)


class NamedLayout(Protocol):
    """What an engine keeps for gradients of one layout. key: of these. names: of their parameters."""

    @property
    def key(self) -> str:
        """See above."""

    @property
    def names(self) -> frozenset[str]:
        """See above."""


LayoutT = TypeVar("LayoutT", bound=NamedLayout)


class Layouts(Generic[LayoutT]):
    """Those of an engine, by key. moving: called before parameters leave a layout for another one, with that one."""

    def __init__(self, in_flight: InFlight[Any], moving: Callable[[LayoutT], None] = lambda _: None) -> None:
        self._in_flight, self._moving = in_flight, moving
        self._known: dict[str, tuple[object, LayoutT]] = {}

    def known(self, key: str, kind: object) -> LayoutT | None:
        """Return that of a key, if there is one of that kind."""
        known = self._known.get(key)
        return known[1] if known is not None and known[0] == kind else None

    def make_room(self, layout: LayoutT) -> None:
        """Call before a new one gets its residual; InputError when its parameters are in flight in another layout.

        A parameter lies in one gradient: those it was in before, as before DDP rebuilt its buckets, are forgotten.
        """
        stale = {key for key, (_, known) in self._known.items() if key == layout.key or known.names & layout.names}
        if stale & self._in_flight.keys():
            raise InputError(f"buffer {layout.key!r} has parameters of buffers in flight")
        if stale:
            self._moving(layout)
        for key in stale:
            del self._known[key]

    def add(self, kind: object, layout: LayoutT) -> None:
        """Take in a new one; `kind`: as known() has it."""
        self._known[layout.key] = kind, layout

    def clear(self) -> None:
        """Forget all: the residuals are other ones."""
        self._known.clear()


def kind_of(buffer: GradientBuffer) -> object:
    """Return what buffers of one layout have in common, for Layouts."""
    gradient = buffer.gradient
    return gradient.numel(), gradient.dtype, gradient.device, buffer.parameters


def check_buffer(buffer: GradientBuffer) -> None:
    """Raise InputError unless the buffer is what GradientBuffer says."""
    gradient = buffer.gradient
    if gradient.dim() != 1 or not gradient.is_contiguous():
        raise InputError(f"gradient of buffer {buffer.key!r} is not a contiguous 1-D tensor")
    if gradient.dtype not in _DTYPES:
        raise InputError(f"gradient of buffer {buffer.key!r} is {gradient.dtype}, not float32, float16 or bfloat16")
    position = 0
    for part in buffer.parameters:
        if not position <= part.start <= part.stop <= gradient.numel():
            raise InputError(f"slices of buffer {buffer.key!r} are not ascending and disjoint at {part}")
        position = part.stop


def check_rows(matrix: ShardMatrix, workers: int, gradient: Tensor, output: Tensor) -> None:
    """Raise InputError for tensors that Engine.reduce_scatter() does not take."""
    if matrix.rows != workers or gradient.numel() != matrix.size or output.numel() != matrix.columns:
        raise InputError(
            f"matrix {matrix.key!r} of {matrix.rows} x {matrix.columns} does not fit {workers} ranks, "
            f"a gradient of {gradient.numel()} and an output of {output.numel()} elements"
        )
    for tensor in (gradient, output):
        if tensor.dtype not in _DTYPES or not tensor.is_contiguous():
            raise InputError(f"gradient is {tensor.dtype}; float32, float16 or bfloat16, contiguous, is needed")


def _index(spans: Iterable[tuple[int, int]], device: torch.device) -> Tensor | None:
    """Return the elements of the spans (start, stop), int64; None without any."""
    ranges = [torch.arange(start, stop, device=device) for start, stop in spans if stop > start]
    return torch.cat(ranges) if ranges else None


def _gaps(parameters: tuple[ParameterSlice, ...], size: int) -> Iterator[tuple[int, int]]:
    edges = [0, *(edge for part in parameters for edge in (part.start, part.stop)), size]
    return zip(edges[::2], edges[1::2], strict=True)
