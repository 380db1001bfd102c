"""The partitions of one gradient buffer, which go through a round together, in few launches."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.arrays import require_tensor
from byteps_thc.block_ends import ends_within
from byteps_thc.compressor import SCALE_GROUP, scale_groups
from byteps_thc.errors import ConfigurationError, InputError
from byteps_thc.gpu import kernels
from byteps_thc.gpu.adaptive_clamp import AdaptiveClamp
from byteps_thc.gpu.tiles import TileList
from byteps_thc.keys import device_key, set_round
from byteps_thc.rounding import REQUANTIZE_DOMAIN, Rounding

if TYPE_CHECKING:
    from byteps_thc.gpu.compressor import GpuCompressor

_GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)


class DeviceBatch:
    """Partitions that follow each other in a buffer; GpuCompressor.batch makes it. P partitions, B rotation blocks.

    coordinates: of all; those of a partition are a multiple of 64 but for the last. padded: each as
    GpuCompressor.sizes() says. code_bytes: of their codes. residual: [coordinates], None without error
    feedback. norms, max_norms: float32[B]. keep: int32[P], whether encode() wrote the residual of a partition.
    clamped: int64[P], coordinates beyond the clamp. energy: float64[P], squared norms. clamp: what widens it; None:
    nothing. measured: float32[B], the norms before that.
    """

    def __init__(
        self,
        compressor: GpuCompressor,
        named: Sequence[tuple[str, slice]],
        residual: Tensor | None,
        ends: Sequence[int] = (),
    ) -> None:
        device, config = compressor.device, compressor.config
        self._compressor = compressor
        self.residual = residual
        self.sizes = [span.stop - span.start for _, span in named]
        self.coordinates = sum(self.sizes)
        if residual is not None:
            self._require("residual", residual, (compressor.residual_dtype,), self.coordinates)
        within = [ends_within(ends, span) for _, span in named]
        sized = zip(self.sizes, within, strict=True)
        counts, padded = zip(*(compressor.sizes(size, own) for size, own in sized), strict=True)
        self.padded = sum(padded)
        self.norms = torch.zeros(sum(counts), device=device)
        steps = compressor.resolved.clamp_steps
        self.clamp = AdaptiveClamp(steps, self.norms, sizes=self.sizes, blocks=counts) if steps else None
        self.measured = self.norms if self.clamp is None else self.clamp.measured
        self.max_norms = torch.zeros_like(self.norms)
        self.keep = torch.zeros(len(named), dtype=torch.int32, device=device)
        self.clamped = torch.zeros(len(named), dtype=torch.int64, device=device)
        self.energy = torch.zeros(len(named), dtype=torch.float64, device=device)
        names = [zlib.crc32(name.encode()) for name, _ in named]
        roundings = [compressor.rounding] + ([] if compressor.down is None else [Rounding(REQUANTIZE_DOMAIN, 0)])
        self._keys = torch.stack(
            [
                device_key(device, seed=config.seed, tensor=name, rounding=rounding)
                for rounding in roundings
                for name in names
            ]
        )
        self._residuals = [None] * len(named) if residual is None else residual.split(self.sizes)
        starts = [0, *itertools.accumulate(counts)]
        self._starts = torch.tensor(starts, dtype=torch.int32, device=device)
        self._ranges = torch.zeros(sum(counts), 4, device=device)
        self._parts = list(
            zip(
                self.measured.split(counts), self.max_norms.split(counts), self._ranges.split(counts),
                self.keep.split(1), self.clamped.split(1), self._keys[: len(named)].unbind(), strict=True,
            )
        )  # fmt: skip
        self._code_bytes = [_core.code_bytes(size, compressor.table.bits) for size in padded]
        self.code_bytes = sum(self._code_bytes)
        self._numbers = torch.uint8 if compressor.resolved.value_bits == 8 else torch.uint16
        self._padded = list(padded)
        self._kept = [_core.padded_size(size, config.rotation_block) for size in self.sizes]
        self._down_keys = self._keys[len(named) :].unbind()
        self._tiles = [
            TileList.of([0, *own, size], config.rotation_block, device) if own else None
            for size, own in zip(self.sizes, within, strict=True)
        ]
        #: of all partitions
        self._all_tiles: TileList | None = None
        if ends or any(size % config.rotation_block for size in self.sizes[:-1]):
            edges = sorted({*itertools.accumulate(self.sizes, initial=0), *ends})
            self._all_tiles = TileList.of(edges, config.rotation_block, device)

    def begin(self, round: int | Tensor) -> None:
        """Begin a round. The number is in device memory from here on: what follows can be recorded as a CUDA graph.

        round: the same on all workers, never twice for a name; 32 bits, or int32[1] on the device.
        """
        set_round(self._keys, round)

    def measure(self, gradient: Tensor) -> None:
        """Write the norms of gradient + residual, larger where the last averages say so (ThcConfig.adaptive_clamp).

        gradient: contiguous, float32, float16 or bfloat16[coordinates], not to be changed until encode() is over.
        """
        self._require("gradient", gradient, _GRADIENTS, self.coordinates)
        self._measure(gradient, self.residual)
        if self.clamp is not None:
            self.clamp.widen()

    def _measure(self, tensor: Tensor, residual: Tensor | None) -> None:
        """Write the norms of tensor + residual to `measured`."""
        block = self._compressor.config.rotation_block
        kernels.block_norms(tensor, residual, self.measured, rotation_block=block, tiles=self._all_tiles)

    def _look(self, average: Tensor) -> None:
        """Choose how wide the clamp of the next round is."""
        if self.clamp is not None:
            self._measure(average, None)
            self.clamp.look(self.energy, self.clamped)

    def encode(self, gradient: Tensor, codes: Tensor) -> None:
        """Rotate, quantize and pack what was measured, and write the residual. max_norms: there already.

        codes: uint8[code_bytes], a stream. A gradient that is not finite, here or on another worker, leaves the
        residual of its partition as it was.
        """
        compressor = self._compressor
        self._require("gradient", gradient, _GRADIENTS, self.coordinates)
        self._require("codes", codes, (torch.uint8,), self.code_bytes)
        kernels.clamp_ranges(
            self.measured, self.max_norms, self._ranges, self.keep, self.clamped, self.energy, table=compressor.table,
            starts=self._starts,
        )  # fmt: skip
        for part, residual, mine, (_, _, ranges, keep, clamped, key), tiles in zip(
            gradient.split_with_sizes(self.sizes), self._residuals, codes.split_with_sizes(self._code_bytes),
            self._parts, self._tiles, strict=True,
        ):  # fmt: skip
            kernels.encode(
                part, residual, ranges, mine, keep, clamped, rotation_block=compressor.config.rotation_block,
                table=compressor.table, key=key, keep_error=residual is not None,
                known=None if compressor.known is None else compressor.known[0], tiles=tiles,
            )  # fmt: skip

    def requantize(self, sums: Tensor, codes: Tensor, scales: Tensor) -> None:
        """Write what this worker sends of the sums of its shard to all workers: a launch for each partition in it.

        With a residual, what that loses is added to it, unless encode() has left that as it was: once in a round.

        sums: uint8 or uint16 (value_bits), a multiple of SCALE_GROUP: of all workers' codes, of the shard of this one's
        number of the padded coordinates. codes: uint8, as many, packed; scales: uint16, one for every SCALE_GROUP. What
        is behind the end of a partition is left as it is.
        """
        compressor, down = self._compressor, self._compressor.down
        if down is None:
            raise ConfigurationError("these settings do not requantize sums: use ThcConfig(down_bits=...) among ranks")
        granularity = compressor.table.granularity
        most = granularity * compressor.workers
        start, first = 0, compressor.worker * sums.numel()
        known: dict[str, Any] = (
            {} if compressor.known is None else {"known": compressor.known[1], "workers": compressor.workers}
        )
        for size, kept, key, residual, (_, max_norms, _, keep, _, own_key), tiles in zip(
            self._padded, self._kept, self._down_keys, self._residuals, self._parts, self._tiles, strict=True
        ):
            begin, end = max(start, first), min(start + kept, first + sums.numel())
            if begin < end:
                at, count = begin - first, end - begin
                own, packed = sums[at : at + count], codes[at * down.bits // 8 : (at + count) * down.bits // 8]
                limits = scales[at // SCALE_GROUP :][: scale_groups(count)]
                kernels.requantize(
                    own, packed, limits, table=down, key=key, first=begin - start, most=most, own_key=own_key, **known
                )
                if residual is not None:
                    kernels.keep_loss(
                        own, packed, limits, max_norms, residual, keep, table=down, key=own_key, first=begin - start,
                        most=most, granularity=granularity, threshold=compressor.decode_threshold,
                        rotation_block=compressor.config.rotation_block, tiles=tiles, **known,
                    )  # fmt: skip
            start += size

    def decode(
        self,
        aggregate: Tensor,
        out: Tensor,
        *,
        sum_bits: int | None = None,
        contributions: Tensor | None = None,
        codes_per_chunk: int | None = None,
    ) -> None:
        """Write the averages to out, float32, float16 or bfloat16[coordinates]; several times, if wanted.

        aggregate: uint8 or uint16 (value_bits) [padded], or a stream of sums of sum_bits bits, uint8. contributions:
        uint8 or uint16, workers in each chunk of codes_per_chunk coordinates (None: one chunk), of a batch of one
        partition; None: all workers are in all sums. Where sums are requantized: aggregate uint8 and contributions
        uint16, table values and scales as GpuCompressor.expand() has written them.
        """
        if self._compressor.down is not None:
            self._decode_requantized(aggregate, contributions, out)
        else:
            self._decode_sums(aggregate, out, sum_bits, contributions, codes_per_chunk)
        self._look(out)

    def _decode_sums(
        self,
        aggregate: Tensor,
        out: Tensor,
        sum_bits: int | None,
        contributions: Tensor | None,
        codes_per_chunk: int | None,
    ) -> None:
        compressor = self._compressor
        resolved, table = compressor.resolved, compressor.table
        self._require("out", out, _GRADIENTS, self.coordinates)
        sizes = self._padded if sum_bits is None else [size * sum_bits // 8 for size in self._padded]
        self._require("aggregate", aggregate, (self._numbers if sum_bits is None else torch.uint8,), sum(sizes))
        if contributions is not None and len(self.sizes) > 1:
            raise InputError(f"contributions to {len(self.sizes)} partitions cannot be told apart: decode each alone")
        contributions = compressor.everybody if contributions is None else contributions
        codes_per_chunk = codes_per_chunk or self.padded
        for sums, mine, part, tiles in zip(
            aggregate.split_with_sizes(sizes), out.split_with_sizes(self.sizes), self._parts, self._tiles, strict=True
        ):
            kernels.decode(
                sums, contributions, part[1], mine, codes_per_chunk=codes_per_chunk,
                rotation_block=compressor.config.rotation_block, granularity=table.granularity,
                threshold=compressor.decode_threshold, key=part[-1], value_bits=resolved.value_bits, sum_bits=sum_bits,
                known=None if compressor.known is None else compressor.known[1], workers=compressor.workers,
                tiles=tiles,
            )  # fmt: skip

    def _decode_requantized(self, values: Tensor, scales: Tensor | None, out: Tensor) -> None:
        compressor, down = self._compressor, self._compressor.down
        assert down is not None
        groups = [scale_groups(size) for size in self._padded]
        if scales is None:
            raise InputError("requantized sums are decoded with their scales")
        self._require("out", out, _GRADIENTS, self.coordinates)
        self._require("aggregate", values, (torch.uint8,), self.padded)
        self._require("contributions", scales, (torch.uint16,), sum(groups))
        for sums, limits, mine, part, tiles in zip(
            values.split_with_sizes(self._padded), scales.split_with_sizes(groups), out.split_with_sizes(self.sizes),
            self._parts, self._tiles, strict=True,
        ):  # fmt: skip
            kernels.decode(
                sums, limits, part[1], mine, codes_per_chunk=SCALE_GROUP, granularity=down.granularity,
                rotation_block=compressor.config.rotation_block, threshold=compressor.decode_threshold, key=part[-1],
                value_bits=8, most=compressor.table.granularity * compressor.workers, tiles=tiles,
            )  # fmt: skip

    def _require(self, name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], size: int) -> None:
        require_tensor(name, tensor, dtypes, size)
        if tensor.device.type != self._compressor.device.type:
            raise InputError(f"{name} is on {tensor.device}, not on {self._compressor.device}")
