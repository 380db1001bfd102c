"""Sharded gradients on their way: every rank gets the average of its own row.

A rank encodes every row by itself and sends it to the rank that needs it (all-to-all); that one decodes the payloads
of all ranks and combines them. So a parameter's coordinates are selected, scaled or counted shard by shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc.baselines.codec import Codec, EncodeContext, VectorSpec
from byteps_thc.baselines.delivery import Delivery, energy_of, is_finite
from byteps_thc.baselines.memory import Compensated, Memory
from byteps_thc.baselines.packed_parameters import PackedParameters
from byteps_thc.pipeline.buffers import ParameterSlice
from byteps_thc.pipeline.dtypes import saturated
from byteps_thc.pipeline.layout import Layout
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.transport.communicator import Communicator, Waitable


def _exchange(
    source: Tensor, communicator: Communicator, workers: int, recorder: StatsRecorder
) -> tuple[Tensor, Waitable]:
    """Start bringing the parts that the ranks have for this one, one after another; uint8."""
    received = torch.empty_like(source)
    recorder.add_collective(source.nbytes, workers)
    return received, communicator.all_to_all(received, source)


class DenseRows(Delivery):
    """As DenseDelivery: everything in one dtype, divided before it is added."""

    def __init__(self, gradient: Tensor, dtype: torch.dtype, workers: int) -> None:
        self._gradient, self._dtype, self._workers = gradient, dtype, workers
        self._narrowed = False
        self._received: Tensor

    @override
    def encode(self) -> None:
        source = self._gradient.to(self._dtype).div_(self._workers)
        self._narrowed = source.element_size() < self._gradient.element_size()
        self._gradient = source

    @override
    def send(self, communicator: Communicator, recorder: StatsRecorder) -> Waitable:
        self._received, work = _exchange(self._gradient.view(torch.uint8), communicator, self._workers, recorder)
        return work

    @override
    def decode(self, out: Tensor, recorder: StatsRecorder) -> None:
        received = self._received.view(self._workers, -1).view(self._dtype)
        total = received[0]
        for row in received[1:]:
            total += row
        out.copy_(saturated(total, out.dtype))
        size = self._gradient.numel()
        recorder.add_gradient(compressed=size if self._narrowed else 0, uncompressed=0 if self._narrowed else size)


@dataclass(frozen=True)
class RowCodes:
    """What of a layout is compressed, and with what.

    parameters: of all rows, one after another. specs: of every row; a row may be empty. own: this rank's parameters, in
    its row, which is number `worker`.
    """

    codec: Codec
    parameters: PackedParameters
    specs: tuple[VectorSpec, ...]
    own: PackedParameters
    worker: int

    @classmethod
    def of(cls, layout: Layout, codec: Codec, worker: int) -> RowCodes:
        """Return that of a layout."""
        rows: list[list[ParameterSlice]] = [[] for _ in range(layout.rows)]
        for part in layout.parameters:
            row, start = divmod(part.start, layout.columns)
            rows[row].append(ParameterSlice(part.name, start, start + part.size))
        specs = tuple(VectorSpec.packing(f"{layout.key}[{row}]", parts) for row, parts in enumerate(rows))
        parameters, own = PackedParameters(layout.key, layout.parameters), PackedParameters("own", rows[worker])
        return cls(codec, parameters, specs, own, worker)

    def encode(self, vector: Tensor, context: EncodeContext) -> Tensor:
        """Return the payload of every row, uint8[rows, bytes of the longest]."""
        sizes = self._payload_bytes(context.step)
        payloads = torch.zeros(len(sizes), max(sizes), dtype=torch.uint8, device="cpu")
        parts = torch.split(vector, [spec.size for spec in self.specs])
        for payload, spec, part, size in zip(payloads, self.specs, parts, sizes, strict=True):
            if size:
                payload[:size] = self.codec.encode(part, spec, context)
        return payloads

    def decode(self, payloads: Tensor, step: int) -> Tensor:
        """Return what the payloads of all rows say."""
        rows = zip(payloads, self.specs, self._payload_bytes(step), strict=True)
        return torch.cat([self.codec.decode(payload[:size], spec, step) for payload, spec, size in rows if size])

    def write_average(self, received: Tensor, output: Tensor, step: int) -> bool:
        """Write the average of the ranks' payloads, and zeros to padding; return whether it is finite."""
        output.zero_()
        size = self._payload_bytes(step)[self.worker]
        if not size:
            return True
        spec = self.specs[self.worker]
        average = self.codec.combine([self.codec.decode(payload[:size], spec, step) for payload in received])
        self.own.put(average, output)
        return is_finite(average)

    def _payload_bytes(self, step: int) -> list[int]:
        return [self.codec.payload_bytes(spec, step) if spec.size else 0 for spec in self.specs]


class CodecRows(Delivery):
    """Rows as payloads of a codec. flags: asked whether averages are finite; nobody else uses it."""

    def __init__(
        self, gradient: Tensor, rows: RowCodes, memory: Memory, context: EncodeContext, flags: Communicator
    ) -> None:
        self._gradient, self._rows, self._memory, self._context, self._flags = gradient, rows, memory, context, flags
        self._state: Compensated
        self._payloads: Tensor
        self._received: Tensor

    @override
    def encode(self) -> None:
        parameters = self._rows.parameters
        self._state = self._memory.compensate(parameters.take(self._gradient), parameters.spec, compressed=True)
        self._gradient = self._gradient.new_empty(0)
        self._payloads = self._rows.encode(self._state.vector, self._context)

    @override
    def send(self, communicator: Communicator, recorder: StatsRecorder) -> Waitable:
        workers = len(self._rows.specs)
        self._received, work = _exchange(self._payloads.view(-1), communicator, workers, recorder)
        return work

    @override
    def decode(self, out: Tensor, recorder: StatsRecorder) -> None:
        rows, step = self._rows, self._context.step
        finite = rows.write_average(self._received.view_as(self._payloads), out, step)
        residual = self._state.kept.get("residual")
        if self._all_finite(finite):
            self._memory.keep(self._state, rows.decode(self._payloads, step))
        else:
            residual = None
            self._memory.rollback.request()
        recorder.add_quantization(
            coordinates=rows.parameters.spec.size,
            clamped=0,
            energy=energy_of(self._state.vector),
            lost_energy=None if residual is None else energy_of(residual),
        )

    def _all_finite(self, finite: bool) -> bool:
        """Whether it is so on all ranks: each knows its own row's average only, and has residuals of all rows."""
        flag = torch.tensor([not finite], dtype=torch.int32, device="cpu")
        self._flags.max_(flag).wait()
        return not flag.item()
