"""A piece of a gradient on the device: what pipeline/piece.py does in host memory, with the same bits.

    measure -> [norms travel] -> encode -> [codes travel] -> sum -> [sums travel] -> decode

All calls come from one thread with the engine's stream as the current one, and only put work on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from byteps_thc.pipeline.device.memory import DeviceRollback
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.transport.communicator import Communicator, Waitable
from byteps_thc.transport.shards import ShardLayout, packs_sums

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc.gpu import GpuCompressor


@dataclass(frozen=True)
class DeviceTools:
    """What the pieces of an engine share. communicator: of device tensors, in the order of the current stream."""

    compressor: GpuCompressor
    communicator: Communicator
    recorder: StatsRecorder
    rollback: DeviceRollback


class DevicePiece:
    """A partition of a gradient, and its codes and sums, which have memory while they travel only.

    span: of the gradient. residual: float32[columns], read and written in place; None without error feedback. norms,
    max_norms: float32[B]; max_norms are there before encode().
    """

    def __init__(
        self, tools: DeviceTools, name: str, span: slice, residual: Tensor | None, norms: Tensor, max_norms: Tensor
    ) -> None:
        compressor = tools.compressor
        self._tools, self.span = tools, span
        self._nothing = norms.new_empty(0, dtype=torch.uint8)
        self.partition = compressor.partition(
            name, span.stop - span.start, residual=residual, norms=norms, max_norms=max_norms, codes=self._nothing
        )
        self._layout = ShardLayout.of(compressor.resolved, self.partition.padded)
        self._work: Waitable
        self._held: list[Tensor] = []  # what travels; the last one arrives

    def measure(self, gradient: Tensor, round: int) -> None:
        """Begin a round: write the norms. gradient: [columns], not to be touched until encode() is over."""
        self._tools.compressor.measure(self.partition, gradient, round=round)

    def encode(self) -> None:
        """Rotate, quantize and send the codes; keep the residual."""
        tools, partition, layout = self._tools, self.partition, self._layout
        if partition.residual is not None:
            tools.rollback.save(partition.residual)
        sent = self._hold(layout.workers * layout.shard_bytes)
        partition.codes = sent[: layout.code_bytes]
        tools.compressor.encode(partition, partition.max_norms)
        tools.rollback.request_unless(partition.keep)
        received = self._hold(sent.numel())
        self._work = tools.communicator.all_to_all(received, sent)
        tools.recorder.add_collective(sent.numel(), layout.workers)

    def sum(self) -> None:
        """Sum this worker's shard and send the sums."""
        tools, layout = self._tools, self._layout
        resolved = tools.compressor.resolved
        self._work.wait()
        codes = self._held[-1].view(layout.workers, layout.shard_bytes)
        sums = self._hold(layout.shard_codes * resolved.value_bits // 8)
        tools.compressor.lookup_sum(codes, self._as_sums(sums))
        sent = sums
        if packs_sums(resolved):
            sent = self._hold(layout.sum_bytes)
            tools.compressor.pack_sums(self._as_sums(sums), sent)
        received = self._hold(layout.workers * layout.sum_bytes)
        self._work = tools.communicator.all_gather(received, sent)
        tools.recorder.add_collective(received.numel(), layout.workers)

    def decode(self, out: Tensor) -> None:
        """Write the average to out, [columns]."""
        tools, partition = self._tools, self.partition
        resolved = tools.compressor.resolved
        self._work.wait()
        sums = self._held[-1]
        if packs_sums(resolved):
            stream = sums[: partition.padded * resolved.sum_bits // 8]
            tools.compressor.decode(partition, stream, None, out, sum_bits=resolved.sum_bits)
        else:
            tools.compressor.decode(partition, self._as_sums(sums)[: partition.padded], None, out)
        self._held.clear()
        partition.codes = self._nothing

    def _hold(self, size: int) -> Tensor:
        """Return uint8[size], which lives until decode() is over."""
        # The allocator gives it to this stream again, which waits for what has travelled before.
        self._held.append(self._nothing.new_empty(size))
        return self._held[-1]

    def _as_sums(self, memory: Tensor) -> Tensor:
        return memory if self._tools.compressor.resolved.value_bits == 8 else memory.view(torch.uint16)
