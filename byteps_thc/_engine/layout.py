"""Gradients of one layout: a matrix of rows x columns with named parameters, some of which travel exactly.

An all-reduce has one row, a reduce-scatter one for every rank.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byteps_thc._base.errors import InputError
from byteps_thc._engine.agreement import Contents, contents_of
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice, ShardMatrix
from byteps_thc._engine.parameters import DTYPES
from byteps_thc._engine.piece import Pieces
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.staging import Staging
from byteps_thc._scheme.block_plan import WHOLE, BlockPlan, block_ends
from byteps_thc._scheme.shares import partition_name

#: Columns or elements (start, stop), ascending and disjoint.
Spans = Sequence[tuple[int, int]]


class Layout:
    """Made of the first gradient of its kind, for all later ones.

    parameters: in the flat gradient. compressed: number of their compressed elements. tensors: columns (start, stop) of
    each compressed one, in the first row. exact: columns (start, stop) that travel exactly. cleared: uncompressed spans
    of the flat gradient, padding included. all_exact: nothing is large enough for compression. staging: brings
    gradients to the kernels; None: they are there. drops_unused: as GradientBuffer's. pieces: of a round; None: a
    gradient is its own average.
    """

    def __init__(
        self,
        extent: "Extent",
        contents: Contents,
        parameters: tuple[ParameterSlice, ...],
        *,
        compressed: int,
        tensors: Iterable[tuple[int, int]],
        exact: Spans,
        cleared: Spans,
        dtype: torch.dtype,
        staging: Staging | None,
        drops_unused: bool = False,
    ) -> None:
        self.dtype, self.drops_unused = dtype, drops_unused
        self.extent, self.contents, self.parameters = extent, contents, parameters
        self.key, self.rows, self.columns = extent.key, extent.rows, extent.columns
        self.size = extent.rows * extent.columns
        self.names = frozenset(parameter.name for parameter in parameters)
        self.compressed, self.all_exact = compressed, not compressed
        self.tensors = tuple(tensors)
        self.staging = staging
        self.exact, self.cleared = ([span for span in spans if span[1] > span[0]] for spans in (exact, cleared))
        self.uncompressed = self.rows * sum(stop - start for start, stop in self.exact)
        self.pieces: Pieces | None = None

    @classmethod
    def of_buffer(cls, buffer: GradientBuffer, policy: CompressionPolicy, staging: Staging | None) -> "Layout":
        """Return the layout of a buffer; InputError unless it is as GradientBuffer requires."""
        check_buffer(buffer, policy)
        size = buffer.gradient.numel()
        alone = {part for part in buffer.parameters if policy.travels_exactly(part.name, part.size, part.row)}
        exact = [(part.start, part.stop) for part in buffer.parameters if part in alone]
        compressed = [part for part in buffer.parameters if part not in alone]
        plan = _plan(block_ends((part.start, part.stop) for part in compressed), compressed)
        contents = contents_of(buffer.key, buffer.parameters)
        same = f"{contents.layout} {plan}".rstrip()
        same += f" {policy.exclude}" if policy.exclude else ""  # BytePS's workers compare no policy at the start
        return cls(
            Extent(buffer.key, 1, size, sharded=False, label=contents.label, layout=same, plan=plan),
            contents,
            buffer.parameters,
            compressed=size - sum(stop - start for start, stop in exact) if len(exact) < len(buffer.parameters) else 0,
            tensors=((part.start, part.stop) for part in compressed),
            exact=exact,
            cleared=[*exact, *_gaps(buffer.parameters, size)],
            dtype=buffer.gradient.dtype,
            staging=staging,
            drops_unused=buffer.drops_unused,
        )

    @classmethod
    def of_matrix(cls, label: str, matrix: ShardMatrix, dtype: torch.dtype) -> "Layout":
        contents = Contents(label, matrix.parameters)
        # Later ranks' shards may be shorter than the first one's, and are padded.
        first_row = [part for part in matrix.compressed if part.start < matrix.columns]
        plan = _plan((), first_row)
        same = f"{contents.layout} {plan}".rstrip()
        return cls(
            Extent(
                matrix.key, matrix.rows, matrix.columns, sharded=True, label=repr(matrix.key), layout=same, plan=plan
            ),
            contents,
            matrix.compressed,
            compressed=sum(part.size for part in matrix.compressed),
            tensors=((part.start, part.stop) for part in first_row),
            exact=matrix.exact,
            cleared=[(gap.start, gap.stop) for gap in matrix.gaps],
            dtype=dtype,
            staging=None,
        )


def check_buffer(buffer: GradientBuffer, policy: CompressionPolicy | None = None) -> None:
    """Raise InputError unless the buffer is as GradientBuffer requires.

    policy: float64 parameters that it compresses are refused; None: the caller converts them to float32.
    """
    gradient = buffer.gradient
    if gradient.dim() != 1 or not gradient.is_contiguous():
        raise InputError(f"gradient of buffer {buffer.key!r} is not a contiguous 1-D tensor")
    large = [
        part.name
        for part in buffer.parameters
        if policy is not None and not policy.travels_exactly(part.name, part.size, part.row)
    ]
    travels_exactly = gradient.dtype == torch.float64 and buffer.parameters and not large
    if gradient.dtype not in DTYPES and not travels_exactly:
        names = f" ({', '.join(large or [part.name for part in buffer.parameters])})" if buffer.parameters else ""
        raise InputError(
            f"gradient of buffer {buffer.key!r}{names} is {gradient.dtype}, not float32, float16 or bfloat16"
        )
    position = 0
    for part in buffer.parameters:
        if not position <= part.start <= part.stop <= gradient.numel():
            raise InputError(f"slices of buffer {buffer.key!r} are not ascending and disjoint at {part}")
        position = part.stop


def check_rows(matrix: ShardMatrix, workers: int, gradient: Tensor, output: Tensor) -> None:
    if matrix.rows != workers or gradient.numel() != matrix.size or output.numel() != matrix.columns:
        raise InputError(
            f"matrix {matrix.key!r} of {matrix.rows} x {matrix.columns} does not fit {workers} ranks, "
            f"a gradient of {gradient.numel()} and an output of {output.numel()} elements"
        )
    for tensor in (gradient, output):
        if tensor.dtype not in DTYPES or not tensor.is_contiguous():
            raise InputError(f"gradient is {tensor.dtype}: it must be float32, float16 or bfloat16, and contiguous")


def _plan(ends: tuple[int, ...], compressed: Iterable[ParameterSlice]) -> BlockPlan:
    return BlockPlan(ends, tuple(span for part in compressed if (span := part.row_span) is not None))


def index_of(spans: Iterable[tuple[int, int]], device: torch.device) -> Tensor | None:
    """Return the elements of the spans (start, stop), int64; None without any."""
    ranges = [torch.arange(start, stop, device=device) for start, stop in spans if stop > start]
    return torch.cat(ranges) if ranges else None


def _gaps(parameters: tuple[ParameterSlice, ...], size: int) -> Iterator[tuple[int, int]]:
    edges = [0, *(edge for part in parameters for edge in (part.start, part.stop)), size]
    return zip(edges[::2], edges[1::2], strict=True)


@dataclass(frozen=True)
class Extent:
    """The rows x columns of a gradient that are cut into pieces.

    key: names it, the same on all workers. sharded: every worker decodes the row of its number; else all decode the
    only row. label: its name in errors, the same on all workers. layout: text that identifies parameters and plan.
    plan: of the blocks, in columns.
    """

    key: str
    rows: int
    columns: int
    sharded: bool
    label: str
    layout: str = ""
    plan: BlockPlan = WHOLE

    def name(self, row: int, span: slice) -> str:
        """Return the name of a partition, its random key: the same on all routes with as many servers."""
        return partition_name(self.key, span, row if self.sharded else None)


def identity_of(
    extent: Extent, names: Sequence[str], span: slice, derived: str, *, whole: bool
) -> tuple[Sequence[str], int, str, str]:
    """Return the identity of a piece, for Fingerprints.of(): names, elements of a row, label, layout.

    derived: a text that identifies the keys and blocks.
    """
    columns, layout = span.stop - span.start, f"{extent.layout} {derived}"
    if whole:
        size = extent.rows * extent.columns
        return [extent.key], size, f"{extent.label} ({size} elements)", layout
    part = f"elements {span.start} to {span.stop} of {extent.columns}"
    if extent.sharded:
        part = f"columns {span.start} to {span.stop} of {extent.columns}"
    elif columns == extent.columns:
        part = f"{columns} elements"
    return names, columns, f"{extent.label} ({part})", layout
