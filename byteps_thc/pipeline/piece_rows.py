"""The rows of a piece, and what compresses them: in host memory, through host memory, or on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from byteps_thc.arrays import F32, U8, U16
from byteps_thc.block_plan import WHOLE, BlockPlan
from byteps_thc.compressor import LARGEST_NORM
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.transport.transport import Transfer

if TYPE_CHECKING:  # it has tensors
    from byteps_thc.device_message import Beside

#: Partitions that follow each other in a row: their names, each a random key, and where they lie in the gradient.
NamedSpans = Sequence[tuple[str, slice]]


class Row(Protocol):
    """A row of a piece: its partitions go through a round together.

    norms: float32[N], of its rotation blocks and of rows with scales, there after measure(); max_norms: float32[N], of
    all workers, to be there before encode(). exact: float32, what travels exactly, of this worker when measure() is
    over, to be the sums over all before decode(), which divides them; None: nothing, or it is not the row's affair.
    residual: as ThcConfig.residual_dtype says, None without error feedback. All where the kernels work, but for norms
    that travel through host memory.
    """

    norms: Any
    max_norms: Any
    residual: Any
    exact: Any = None

    def begin(self, round: int) -> None:
        """Begin a round."""

    def measure(self, gradient: Any) -> None:
        """Write the norms of gradient + residual; the gradient is not to be touched until encode() is over."""

    def encode(self, gradient: Any) -> None:
        """Write the row's codes to those of the transfer, and the residual unless gradients are not finite."""

    def finite(self) -> Any:
        """Whether max_norms are finite, so that residuals are kept: a bool, or a tensor of one element."""

    def decode(self, sums: Any, contributions: Any, out: Any) -> None:
        """Write the average to out; arguments as Transfer.aggregate() gives them."""


class Rows(Protocol):
    """Makes rows.

    joint: whether all partitions of all rows of a gradient go through a round together, as one Row, which takes fewer
    launches; or those of each row alone, so that some travel while others are worked on. takes_exact: whether rows take
    out what is not compressed, and put it back. resolved: settings and table. worker: this one's id.
    """

    joint: bool
    takes_exact: bool
    resolved: ResolvedConfig
    worker: int

    def sizes(self, spans: Sequence[slice], plan: BlockPlan) -> tuple[int, int]:
        """Return (norms, padded coordinates) of a row of partitions. plan: of the gradient."""

    def rows(
        self,
        named: Sequence[NamedSpans],
        plan: BlockPlan,
        residuals: Any | None,
        transfer: Transfer,
        codes_per_chunk: int | None,
        beside: Beside | None,
    ) -> Sequence[Row]:
        """Return the rows of a piece, one for each of `named`; where they are joint one for all.

        plan: see sizes(). residuals: [rows, columns], read and written in place, or None. transfer: where codes go.
        codes_per_chunk: see Transport. beside: what is not compressed, where rows take it out; None: it is done.
        """


class PartitionCompressor(Protocol):
    """See compressor.Compressor, which is one. Gradients and residuals are where the kernels work, all else is in host
    memory.

    Calls for different partitions may come from different threads, those for one partition in order. On a device
    decode() may go on after the return; it is over, and its arrays may be written again, when the next encode() of the
    partition returns.
    """

    @property
    def config(self) -> ThcConfig:
        """The settings."""

    @property
    def resolved(self) -> ResolvedConfig:
        """What they come to for that many workers."""

    @property
    def workers(self) -> int:
        """Number of workers."""

    @property
    def worker(self) -> int:
        """This one's id."""

    def sizes(self, coordinates: int, plan: BlockPlan = WHOLE) -> tuple[int, int]:
        """Return (norms, padded coordinates) of a partition."""

    def partition(
        self, name: str, coordinates: int, *, plan: BlockPlan = WHOLE, residual: Any, norms: F32, codes: U8
    ) -> Any:
        """Return a new partition. plan: of its blocks. norms, codes: to be written by measure() and encode()."""

    def measure(self, partition: Any, gradient: Any, *, round: int, bfloat16: bool = False) -> F32:
        """Begin a round; the norms are in host memory on return."""

    def encode(self, partition: Any, max_norms: F32) -> U8:
        """Write codes and residual; the codes are in host memory on return, and max_norms may be written again."""

    def decode(
        self,
        partition: Any,
        aggregate: U8 | U16,
        contributions: U8 | U16,
        out: Any,
        *,
        codes_per_chunk: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        """Write the average to `out`."""


class PartitionRow(Row):
    """A row that is one partition. Gradients are as arrays.gradient_view makes them, or tensors on a device."""

    def __init__(
        self,
        compressor: PartitionCompressor,
        name: str,
        coordinates: int,
        plan: BlockPlan,
        residual: Any,
        codes: U8,
        codes_per_chunk: int | None,
    ) -> None:
        count, _ = compressor.sizes(coordinates, plan)
        self._compressor, self._codes_per_chunk = compressor, codes_per_chunk
        self.norms: F32 = np.zeros(count, np.float32)
        self.max_norms: F32 = np.zeros(count, np.float32)
        self.partition = compressor.partition(
            name, coordinates, plan=plan, residual=residual, norms=self.norms, codes=codes
        )
        self.residual = self.partition.residual
        #: rounds that were encoded
        self.encoded = 0
        self._round = 0

    def begin(self, round: int) -> None:
        """See Row."""
        self._round = round

    def measure(self, gradient: Any) -> None:
        """See Row."""
        self._compressor.measure(self.partition, gradient, round=self._round, bfloat16=_is_bfloat16(gradient))

    def encode(self, gradient: Any) -> None:  # noqa: ARG002  # the partition has it
        """See Row."""
        self._compressor.encode(self.partition, self.max_norms)
        self.encoded += 1

    def finite(self) -> bool:
        """See Row."""
        return bool((self.max_norms <= LARGEST_NORM).all())

    def decode(self, sums: U8 | U16, contributions: U8 | U16, out: Any) -> None:
        """See Row."""
        self._compressor.decode(
            self.partition,
            sums,
            contributions,
            out,
            codes_per_chunk=self._codes_per_chunk,
            bfloat16=_is_bfloat16(out),
        )


class PartitionRows(Rows):
    """Rows of a Compressor's partitions, each of which goes through a round alone."""

    joint = takes_exact = False

    def __init__(self, compressor: PartitionCompressor) -> None:
        self._compressor = compressor
        self.resolved, self.worker = compressor.resolved, compressor.worker

    def sizes(self, spans: Sequence[slice], plan: BlockPlan) -> tuple[int, int]:
        """See Rows; one span."""
        (span,) = spans
        return self._compressor.sizes(span.stop - span.start, plan.within(span))

    def rows(
        self,
        named: Sequence[NamedSpans],
        plan: BlockPlan,
        residuals: Any | None,
        transfer: Transfer,
        codes_per_chunk: int | None,
        beside: Any | None,  # noqa: ARG002
    ) -> Sequence[PartitionRow]:
        """See Rows; one partition in each."""
        codes = transfer.codes.reshape(len(named), -1)
        of_rows = [None] * len(named) if residuals is None else residuals
        return [
            PartitionRow(
                self._compressor,
                name,
                span.stop - span.start,
                plan.within(span),
                residual,
                own,
                codes_per_chunk,
            )
            for ((name, span),), residual, own in zip(named, of_rows, codes, strict=True)
        ]


def _is_bfloat16(view: Any) -> bool:
    """gradient_view gives uint16 for bfloat16 tensors alone; a tensor says itself what it is."""
    return isinstance(view, np.ndarray) and view.dtype == np.uint16
