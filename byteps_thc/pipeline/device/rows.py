"""Rows of pieces in device memory, and their figures, which stay there until somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc.block_plan import BlockPlan
from byteps_thc.device_message import Beside
from byteps_thc.pipeline.device.agreement import DeviceMessage
from byteps_thc.pipeline.figures import Figures
from byteps_thc.pipeline.piece_rows import NamedSpans, Row, Rows
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.transport.shards import packs_sums
from byteps_thc.transport.transport import Transfer

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc.gpu import DeviceBatch, GpuCompressor


class DeviceRow(Row):
    """All rows of a piece, whose partitions go through a round together."""

    def __init__(self, batch: DeviceBatch, transfer: Transfer, sum_bits: int | None) -> None:
        self.batch = batch
        self.norms, self.max_norms, self.residual = batch.norms, batch.max_norms, batch.residual
        self.exact = batch.exact
        self._transfer, self._sum_bits = transfer, sum_bits
        self._message: DeviceMessage
        self._round = 0

    def join(self, message: DeviceMessage) -> None:
        """See agreement.JoinedRow."""
        self._message, self.batch.message = message, message.memory

    @override
    def begin(self, round: int) -> None:
        self._round = round

    @override
    def measure(self, gradient: Tensor) -> None:
        self.batch.measure(gradient, (self._round, self._message.header))

    @override
    def encode(self, gradient: Tensor) -> None:
        self.batch.encode(gradient, self._transfer.codes)

    @override
    def finite(self) -> Tensor:
        return self.batch.keep.all()

    @override
    def requantize(self, received: Tensor | None, sums: Tensor, codes: Tensor, scales: Tensor) -> None:
        self.batch.requantize(sums, codes, scales, received)

    @override
    def decode(self, sums: Tensor, contributions: Any, out: Tensor) -> None:
        self.batch.decode(sums, out, sum_bits=self._sum_bits, contributions=contributions)


class DeviceRows(Rows):
    """Rows of a GpuCompressor. Nothing of them waits for the device, nor do their pieces: all is put on its stream.

    One launch for all partitions of all rows, and one transfer for all of a gradient: every launch and every collective
    costs the host tens of microseconds, and what pieces would overlap with each other, backward overlaps anyhow.
    packed: sums travel in as few bits as they need.
    """

    joint = True

    def __init__(self, compressor: GpuCompressor, *, packed: bool) -> None:
        self._compressor = compressor
        self.resolved, self.worker = compressor.resolved, compressor.worker
        # The clamp looks at whole averages, as it does in host memory.
        self.takes_exact = not self.resolved.clamp_steps
        packed = packed and self.resolved.down is None and packs_sums(self.resolved)
        self._sum_bits = self.resolved.sum_bits if packed else None

    @override
    def sizes(self, spans: Sequence[slice], plan: BlockPlan) -> tuple[int, int]:
        sized = (self._compressor.sizes(span.stop - span.start, plan.within(span)) for span in spans)
        norms, padded = zip(*sized, strict=True)
        return sum(norms), sum(padded)

    @override
    def rows(
        self,
        named: Sequence[NamedSpans],
        plan: BlockPlan,
        residuals: Any | None,
        transfer: Transfer,
        codes_per_chunk: int | None,
        beside: Beside | None,
    ) -> Sequence[DeviceRow]:
        names = [[name for name, _ in row] for row in named]
        spans = [span for _, span in named[0]]
        decoded = self.worker if len(named) > 1 else 0
        flat = None if residuals is None else residuals.view(-1)
        batch = self._compressor.matrix(names, spans, flat, plan, decoded, beside)
        return [DeviceRow(batch, transfer, self._sum_bits)]


class DeviceFigures(Figures):
    """Brings what quantization did in the current step from the rows to the recorder, once; no times are measured."""

    def __init__(self, recorder: StatsRecorder) -> None:
        self._recorder = recorder
        self._encoded: dict[DeviceBatch, None] = {}

    @override
    def start_step(self) -> None:
        self._encoded.clear()

    @override
    def encoded(self, rows: Sequence[DeviceRow]) -> None:
        """Note the rows of a piece; one that comes again before read() counts once, with its last figures."""
        self._encoded.update((row.batch, None) for row in rows)

    @override
    def read(self) -> None:
        """Report them; waits for the device."""
        batches, self._encoded = [*self._encoded], {}
        for batch in batches:
            figures = torch.stack([batch.clamped.double(), batch.energy, batch.keep.double()], 1).tolist()
            for coordinates, (clamped, energy, keep) in zip(batch.sizes, figures, strict=True):
                self._recorder.add_quantization(
                    coordinates=coordinates,
                    clamped=int(clamped),
                    energy=energy,
                    lost_energy=0.0 if keep and batch.residual is not None else None,
                )

    @override
    def add_time(self, *, encode_ms: float = 0.0, communicate_ms: float = 0.0, decode_ms: float = 0.0) -> None:
        pass
