"""The partitions of one gradient buffer, which go through a round together, in few launches."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.arrays import require_tensor
from byteps_thc.block_plan import WHOLE, BlockPlan
from byteps_thc.compressor import requantized_shard, scale_groups
from byteps_thc.device_message import HEADER_WORDS, Beside, Exact, Message
from byteps_thc.errors import ConfigurationError, InputError
from byteps_thc.gpu import kernels
from byteps_thc.gpu.adaptive_clamp import AdaptiveClamp
from byteps_thc.gpu.requantize import places_of
from byteps_thc.gpu.row_scales import DeviceRowScales
from byteps_thc.gpu.tiles import TileTable
from byteps_thc.keys import device_keys, set_round
from byteps_thc.rounding import REQUANTIZE_DOMAIN, Rounding

if TYPE_CHECKING:
    from byteps_thc.gpu.compressor import GpuCompressor

_LARGEST_WORD = (1 << 31) - 1
_GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)


class DeviceBatch:
    """Partitions of one or several rows of a buffer; GpuCompressor.batch makes it. P partitions, B rotation blocks, of
    all rows.

    coordinates: of all; those of a partition are a multiple of 64 but for the last of a row. padded: of a row, each as
    GpuCompressor.sizes() says. code_bytes: of the codes of all. residual: [coordinates], None without error feedback.
    norms, max_norms: float32[B + S], of the blocks and of S rows with scales. scales: of those rows; None without any.
    limits: float32[B], the norms that clamp the blocks; valid after encode().
    keep: int32[P], whether encode() wrote the residual of a partition. clamped: int64[P],
    coordinates beyond the clamp. energy: float64[P], squared norms. sizes: of the partitions. clamp: what widens it;
    None: nothing. measured: float32[B], the norms before that.
    """

    def __init__(
        self,
        compressor: GpuCompressor,
        names: Sequence[Sequence[str]],
        spans: Sequence[slice],
        residual: Tensor | None,
        plan: BlockPlan = WHOLE,
        decoded: int = 0,
        beside: Beside | None = None,
    ) -> None:
        device, config = compressor.device, compressor.config
        self._compressor = compressor
        self.residual = residual
        sizes, rows = [span.stop - span.start for span in spans], len(names)
        self.sizes = rows * sizes
        self.coordinates = sum(self.sizes)
        if residual is not None:
            self._require("residual", residual, (compressor.residual_dtype,), self.coordinates)
        plans = [plan.within(span) for span in spans]
        within = [own.ends for own in plans]
        padded = tuple(compressor.sizes(size, own)[1] for size, own in zip(sizes, plans, strict=True))
        counts = [compressor.partition_sizes.blocks(size, own) for size, own in zip(sizes, plans, strict=True)]
        self.padded, self._padded = sum(padded), padded
        beside = beside or Beside(None, (), ())
        self.scales = self._row_scales(plans, rows * counts, beside.holes)
        self._blocks = rows * sum(counts)
        # Here, because a copy from host memory waits for the device.
        self._part_sizes = torch.tensor(self.sizes, device=device)
        self.norms = torch.zeros(self._blocks + (0 if self.scales is None else len(self.scales)), device=device)
        steps, blocks = compressor.resolved.clamp_steps, rows * list(counts)
        self.clamp = AdaptiveClamp(steps, self.norms, sizes=self.sizes, blocks=blocks) if steps else None
        self.measured = self.norms[: self._blocks] if self.clamp is None else self.clamp.measured
        self.max_norms = torch.zeros_like(self.norms)
        self.limits = self.max_norms
        parts = len(self.sizes)
        self.keep = torch.zeros(parts, dtype=torch.int32, device=device)
        self.clamped = torch.zeros(parts, dtype=torch.int64, device=device)
        self.energy = torch.zeros(parts, dtype=torch.float64, device=device)
        tensors = [zlib.crc32(name.encode()) for row in names for name in row]
        roundings = [compressor.rounding] + ([] if compressor.down is None else [Rounding(REQUANTIZE_DOMAIN, 0)])
        self._all_keys = device_keys(device, seed=config.seed, tensors=tensors, roundings=roundings)
        self._keys, self._down_keys = self._all_keys[:parts], self._all_keys[parts:]
        starts = [0, *itertools.accumulate(blocks)]
        self._starts = torch.tensor(starts, dtype=torch.int32, device=device)
        self._ranges = torch.zeros(self._blocks, 4, device=device)
        self.code_bytes = rows * _core.code_bytes(self.padded, compressor.table.bits)
        self._numbers = torch.uint8 if compressor.resolved.value_bits == 8 else torch.uint16
        self._kept = [_core.padded_size(size, config.rotation_block) for size in sizes]
        #: where what travels with codes is, if anything; see Message
        self.message: Message | None = None
        self._row_coordinates = sum(sizes)
        self._decoded_row = slice(decoded * self._row_coordinates, (decoded + 1) * self._row_coordinates)
        exact = beside.exact(rows, self._row_coordinates)
        #: float32, of this worker when measure() is over, to be the sums over all before decode(); None: nothing
        self.exact = None if exact is None else exact.values
        self._taken, self._put_back = exact, None
        if exact is not None and beside.columns is not None:
            self._put_back = Exact(exact.values.view(rows, -1)[decoded], beside.columns)
        table = partial(TileTable.of, sizes, within, padded, config.rotation_block, device, rows=rows)
        self._tiles = self._decoded = table(holes=beside.holes)
        exact_holes = beside.spans_of(rows, self._row_coordinates)
        if exact_holes != list(beside.holes):  # averages of padding are written, as they always were
            self._decoded = table(holes=exact_holes)
        if rows > 1:
            self._decoded = self._decoded.of_row(decoded, len(sizes))
        #: by the size of a shard
        self._shards: dict[int, tuple[Tensor, TileTable | None]] = {}

    def begin(self, round: int | Tensor) -> None:
        """Begin a round. The number is in device memory from here on: what follows can be recorded as a CUDA graph.

        round: the same on all workers, never twice for a name; 32 bits, or int32[1] on the device.
        """
        set_round(self._all_keys, round)

    def measure(self, gradient: Tensor, begin: tuple[int, tuple[int, int, int, int]] | None = None) -> None:
        """Write the norms of gradient + residual, larger where the last averages say so (ThcConfig.adaptive_clamp).

        gradient: contiguous, float32, float16 or bfloat16[coordinates], not to be changed until encode() is over.
        begin: the round, which begins here and not with begin(), and the header for `message`, where norms go, too.
        """
        self._require("gradient", gradient, _GRADIENTS, self.coordinates)
        message, started = self.message, None
        if begin is not None and message is not None:
            started = kernels.Begin(begin[0], self._all_keys, message, begin[1])
        as_they_are = self.clamp is None and self.scales is None
        send = started is not None and as_they_are
        self._measure(gradient, self.residual, self._tiles, begin=started, send=send, exact=self._taken)
        if self.clamp is not None:
            self.clamp.widen()
        if self.scales is not None:
            self.scales.measure(gradient, self.residual, self.norms)
        if message is not None and not as_they_are:
            torch.bitwise_and(self.norms.view(torch.int32), _LARGEST_WORD, out=message.words[HEADER_WORDS:])

    def _measure(self, tensor: Tensor, residual: Tensor | None, tiles: TileTable, **beside: Any) -> None:
        """Write the norms of tensor + residual to `measured`."""
        block = self._compressor.config.rotation_block
        kernels.block_norms(tensor, residual, self.measured, rotation_block=block, tiles=tiles, **beside)

    def _look(self, average: Tensor) -> None:
        """Choose how wide the clamp of the next round is."""
        if self.clamp is not None:
            if len(self.sizes) > len(self._padded):
                self.measured.zero_()  # of other rows there is no average here, and their clamp stays
            self._measure(average, None, self._decoded)
            self.clamp.look(self.energy, self.clamped)

    def encode(self, gradient: Tensor, codes: Tensor) -> None:
        """Rotate, quantize and pack what was measured, and write the residual. max_norms: there already.

        codes: uint8[code_bytes], a stream. A gradient that is not finite, here or on another worker, leaves the
        residual of its partition as it was.
        """
        compressor = self._compressor
        self._require("gradient", gradient, _GRADIENTS, self.coordinates)
        self._require("codes", codes, (torch.uint8,), self.code_bytes)
        scales, carried = self.scales, self.residual
        ranges = partial(kernels.clamp_ranges, table=compressor.table, starts=self._starts)
        if scales is None:
            ranges(
                self.measured, self.max_norms, self._ranges, self.keep, self.clamped, self.energy, message=self.message
            )
        else:
            if self.message is not None:
                self.message.take(self.max_norms)
            blocks = self.max_norms[: self._blocks]
            ranges(self.measured, blocks, self._ranges, self.keep, self.clamped, self.energy)
            self.limits = scales.take(self.max_norms)
            unused = [torch.empty_like(tensor) for tensor in (self.keep, self.clamped, self.energy)]
            ranges(self.measured, self.limits, self._ranges, *unused)
            gradient = scales.scale(gradient, carried)
            carried = None if carried is None else torch.zeros_like(gradient)
        kernels.encode(
            gradient, carried, self._ranges, codes, self.keep, self.clamped,
            rotation_block=compressor.config.rotation_block, table=compressor.table, key=self._keys,
            keep_error=self.residual is not None, known=None if compressor.known is None else compressor.known[0],
            tiles=self._tiles,
        )  # fmt: skip
        if scales is not None and carried is not None:
            self._keep(scales.unscale(carried))

    def requantize(self, sums: Tensor, codes: Tensor, scales: Tensor, received: Tensor | None = None) -> None:
        """Write what this worker sends of the sums of its shard to all workers. Of one row.

        With a residual, what that loses is added to it, unless encode() has left that as it was: once in a round.

        sums: uint8 or uint16 (value_bits), a multiple of SCALE_GROUP: of all workers' codes, of the shard of this one's
        number of the padded coordinates. codes: uint8, as many, packed; scales: uint16, one for every SCALE_GROUP. What
        is behind the end of a partition is left as it is. received: uint8[workers, bytes], all workers' codes: of which
        the sums are written first; None: they are there.
        """
        compressor, down = self._compressor, self._compressor.down
        if down is None:
            raise ConfigurationError("these settings do not requantize sums: use ThcConfig(down_bits=...) among ranks")
        granularity = compressor.table.granularity
        most, count = granularity * compressor.workers, sums.numel()
        places, tiles = self._shards.get(count) or self._shards.setdefault(count, self._shard(count))
        known: dict[str, Any] = (
            {} if compressor.known is None else {"known": compressor.known[1], "workers": compressor.workers}
        )
        kernels.requantize(
            sums, codes, scales, table=down, key=self._down_keys, places=places, most=most, own_key=self._keys,
            received=received, received_table=compressor.table, **known,
        )  # fmt: skip
        if self.residual is not None and tiles is not None:
            residual = self.residual if self.scales is None else self.scales.scale(self.residual, None)
            kernels.keep_loss(
                sums, codes, scales, self.limits, residual, self.keep, table=down, key=self._keys,
                first=compressor.worker * count, most=most, granularity=granularity,
                threshold=compressor.decode_threshold, rotation_block=compressor.config.rotation_block, tiles=tiles,
                **known,
            )  # fmt: skip
            if self.scales is not None:
                self._keep(self.scales.unscale(residual))

    def _keep(self, residual: Tensor) -> None:
        """Take over the residuals of partitions that were kept."""
        assert self.residual is not None
        kept = torch.repeat_interleave(self.keep != 0, self._part_sizes, output_size=self.coordinates)
        torch.where(kept, residual.to(self.residual.dtype), self.residual, out=self.residual)

    def _row_scales(
        self, plans: Sequence[BlockPlan], blocks: Sequence[int], holes: Sequence[tuple[int, int]]
    ) -> DeviceRowScales | None:
        """Return the scales of rows; None where no partition has any."""
        sizes = self._compressor.partition_sizes
        spans = zip(self.sizes[: len(plans)], plans, strict=True)
        segments = [sizes.scaled_rows(size, plan) for size, plan in spans]
        if not any(segments):
            return None
        rows = len(self.sizes) // len(plans)
        return DeviceRowScales(rows * segments, self.sizes, blocks, holes, self._compressor.device)

    def _shard(self, count: int) -> tuple[Tensor, TileTable | None]:
        """Where requantize() and keep_loss() work on a shard of so many codes."""
        first, start, runs = self._compressor.worker * count, 0, []
        for part, (size, kept) in enumerate(zip(self._padded, self._kept, strict=True)):
            begin, end = max(start, first), min(start + kept, first + count)
            if begin < end:
                runs.append((begin - first, begin - start, end - begin, part))
            start += size
        return places_of(runs, self._compressor.device), self._tiles.with_codes(first, first + count)

    def decode(
        self,
        aggregate: Tensor,
        out: Tensor,
        *,
        sum_bits: int | None = None,
        contributions: Tensor | None = None,
        codes_per_chunk: int | None = None,
    ) -> None:
        """Write the averages to out, float32, float16 or bfloat16[coordinates of a row]; several times, if wanted.

        aggregate: uint8 or uint16 (value_bits) [padded], or a stream of sums of sum_bits bits, uint8. contributions:
        uint8 or uint16, workers in each chunk of codes_per_chunk coordinates (None: one chunk), of a batch of one
        partition; None: all workers are in all sums. Where sums are requantized: aggregate uint8[workers, bytes], what
        requantize() of all workers has written: codes, behind them scales, and what fills up a multiple of 4.
        """
        self._require("out", out, _GRADIENTS, self._row_coordinates)
        average = out if self.scales is None else torch.zeros(out.shape, device=out.device)
        if self._compressor.down is not None:
            self._decode_requantized(aggregate, average)
        else:
            self._decode_sums(aggregate, average, sum_bits, contributions, codes_per_chunk)
        if self.scales is not None:
            out.copy_(self.scales.unscale(average, self._decoded_row))
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
        size = self.padded if sum_bits is None else self.padded * sum_bits // 8
        self._require("aggregate", aggregate, (self._numbers if sum_bits is None else torch.uint8,), size)
        if contributions is not None and len(self.sizes) > 1:
            raise InputError(f"contributions to {len(self.sizes)} partitions cannot be told apart: decode each alone")
        kernels.decode(
            aggregate, compressor.everybody if contributions is None else contributions, self.limits, out,
            codes_per_chunk=codes_per_chunk or self.padded, rotation_block=compressor.config.rotation_block,
            granularity=table.granularity, threshold=compressor.decode_threshold, key=self._keys,
            value_bits=resolved.value_bits, sum_bits=sum_bits,
            known=None if compressor.known is None else compressor.known[1], workers=compressor.workers,
            tiles=self._decoded, **self._beside,
        )  # fmt: skip

    def _decode_requantized(self, shards: Tensor, out: Tensor) -> None:
        compressor, down = self._compressor, self._compressor.down
        assert down is not None
        self._require("aggregate", shards, (torch.uint8,))
        codes = requantized_shard(self.padded, compressor.workers)
        needed = codes * down.bits // 8 + 2 * scale_groups(codes)
        if shards.dim() != 2 or shards.shape[0] != compressor.workers or shards.shape[1] < needed:
            raise InputError(
                f"requantized sums must be uint8[{compressor.workers}, {needed} or more], not {list(shards.shape)}"
            )
        kernels.decode_requantized(
            shards, self.limits, out, table=down, shard_codes=codes,
            most=compressor.table.granularity * compressor.workers, rotation_block=compressor.config.rotation_block,
            threshold=compressor.decode_threshold, key=self._keys, workers=compressor.workers, tiles=self._decoded,
            **self._beside,
        )  # fmt: skip

    @property
    def _beside(self) -> dict[str, Any]:
        """What decode() puts back besides."""
        return {"exact": self._put_back, "differ": None if self.message is None else self.message.differ}

    def _require(self, name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], size: int | None = None) -> None:
        require_tensor(name, tensor, dtypes, size)
        if tensor.device.type != self._compressor.device.type:
            raise InputError(f"{name} is on {tensor.device}, not on {self._compressor.device}")
