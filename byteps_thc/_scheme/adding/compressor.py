"""A worker's side of THC: gradient to codes, aggregate to average gradient (paper, sections 4 to 6).

The network runs between the stages, so each is a separate call:

    partition = compressor.partition("layer1.weight", gradient.size)
    compressor.measure(partition, gradient, round=step)    # partition.norms
    compressor.encode(partition, max_norms)                # after the preliminary stage; partition.codes
    compressor.decode(partition, aggregate, contributions, out)

A Compressor keeps nothing of a gradient; a Partition does. Calls for different partitions may come from different
threads; calls for one partition must be in order. The kernels release the GIL.
"""

import enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from byteps_thc._base.arrays import (
    F32,
    U8,
    U16,
    U64,
    Gradient,
    energy_of,
    gradient_view,
    residual_of_tensor,
    value_dtype,
)
from byteps_thc._base.built import check_arithmetic
from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._base.limits import MAX_THREADS, default_threads
from byteps_thc._base.wire.layout import MIN_CODES_PER_PACKET
from byteps_thc._native import _core
from byteps_thc._scheme.adding.row_scales import PartitionSizes, RowScales
from byteps_thc._scheme.adding.server_codes import ResolvedCodes, ServerCodes, resolved_for
from byteps_thc._scheme.block_plan import WHOLE, BlockPlan, ends_array
from byteps_thc._scheme.rounding import Rounding
from byteps_thc._scheme.shares import random_key

if TYPE_CHECKING:
    from torch import Tensor

check_arithmetic(_core)

#: Largest max norm with a new residual. Beyond it fp32 intermediates (up to 2^10 norms) may overflow: as with infinite
#: gradients, a GradScaler will skip the step.
LARGEST_NORM = 2.0**96


class _Stage(enum.Enum):
    IDLE = "without a gradient"
    MEASURED = "measured"
    ENCODED = "encoded"


class Partition:
    """Buffers and progress of one partition, made by Compressor.partition and used in every round.

    norms: float32[B + S], Euclidean norms of the rotation blocks and of rows with scales, for a maximum over the
        workers; valid after measure.
    scales: scales of the rows, or None.
    limits: float32[B], norms that clamp the blocks; valid after encode.
    codes: uint8, packed codes of `padded` coordinates, all of which travel; valid after encode.
    residual: float32[coordinates]; None without error feedback.
    ends: ends of rotation blocks, or None.
    clamped: coordinates beyond the clamp in the last encode.
    residual_kept: whether the last encode wrote the residual.
    """

    def __init__(
        self,
        name: str,
        tensor: int,
        coordinates: int,
        padded: int,
        ends: U64 | None,
        *,
        residual: F32 | None,
        norms: F32,
        codes: U8,
        scales: RowScales | None,
    ) -> None:
        self.name, self.tensor = name, tensor
        self.coordinates, self.padded, self.ends = coordinates, padded, ends
        self.residual, self.norms, self.codes, self.scales = residual, norms, codes, scales
        self.max_norms: F32 = np.zeros_like(norms)
        self.limits: F32 = self.max_norms
        self.round, self.clamped, self.residual_kept = 0, 0, False
        self.gradient: Gradient | None = None
        self.stage = _Stage.IDLE

    @property
    def measured(self) -> F32:
        """Norms of the blocks before scaling, float32[B]."""
        return self.norms if self.scales is None else self.norms[: self.scales.blocks]

    @property
    def energy(self) -> float:
        """|gradient + residual|^2 of this round."""
        return energy_of(self.measured)

    def require(self, stage: _Stage) -> None:
        """Raise InputError unless the partition is in this stage."""
        if self.stage is not stage:
            raise InputError(f"partition {self.name!r} is {self.stage.value}: call measure, encode, decode in order")


class Compressor:
    """Compress one worker's gradients, and decode averages. THC and Uniform THC differ in their tables only.

    codes: a ServerCodes, the same on all workers, or a ResolvedCodes, whose table is kept.
    workers: number of workers.
    worker: number of this worker, 0 .. workers - 1.
    threads: threads per kernel, 1 .. 8; default: cores / processes of the host, at most 8. Results do not depend on it.

    Raises ConfigurationError if the settings do not fit the number of workers.
    """

    def __init__(
        self, codes: ServerCodes | ResolvedCodes, *, workers: int, worker: int, threads: int | None = None
    ) -> None:
        self.resolved = resolved_for(codes, workers, worker, "Compressor")
        self.codes, self.table = self.resolved.codes, self.resolved.table
        self._threshold, self._decode_threshold = self.table.threshold, self.resolved.decode_threshold
        self.workers, self.worker = workers, worker
        self.rounding = Rounding.of(self.codes.rounding, worker, workers)
        self._sizes = PartitionSizes(self.resolved)
        threads = default_threads() if threads is None else threads
        if not 1 <= threads <= MAX_THREADS:
            raise ConfigurationError(f"threads must be in 1 .. {MAX_THREADS}, not {threads}")
        self.pool = _core.ThreadPool(threads) if threads > 1 else None

    def sizes(self, coordinates: int, plan: BlockPlan = WHOLE) -> tuple[int, int]:
        """Return (norms, padded coordinates) of a partition: sizes of its norms and of its aggregate.

        coordinates: number of coordinates.
        plan: plan of partition(), default: none.
        """
        return self._sizes.of(coordinates, plan)

    def partition(
        self,
        name: str,
        coordinates: int,
        *,
        plan: BlockPlan = WHOLE,
        tensor: int | None = None,
        residual: "F32 | Tensor | None" = None,
        norms: F32 | None = None,
        codes: U8 | None = None,
    ) -> Partition:
        """Return a new partition, in the caller's arrays if given.

        name: name of the gradient.
        coordinates: number of coordinates.
        plan: further ends of rotation blocks, ascending multiples of 128 below coordinates, and rows with scales; the
            same on all workers; default: none.
        tensor: 32-bit key of the random signs, the same on all workers and unique for each partition; default: from the
            name.
        residual: previous loss, as Partition.residual or a tensor in host memory; default: zeros.
        norms: float32[B + S] to use; default: new.
        codes: uint8 to use, as long as Partition.codes; default: new.

        Raises InputError for other arrays, and ConfigurationError for other ends or for a residual without error
        feedback.
        """
        count, padded = self.sizes(coordinates, plan)
        code_bytes = _core.code_bytes(padded, self.table.bits)
        if residual is not None and not self.resolved.error_feedback:
            raise ConfigurationError("a residual needs error feedback: pass None, or set error_feedback=True")
        if residual is None and self.resolved.error_feedback:
            residual = np.zeros(coordinates, np.float32)
        elif residual is not None and not isinstance(residual, np.ndarray):
            residual = residual_of_tensor(residual)
        if residual is not None:
            _check_array("residual", residual, np.float32, coordinates)
        norms = np.zeros(count, np.float32) if norms is None else norms
        codes = np.zeros(code_bytes, np.uint8) if codes is None else codes
        _check_array("norms", norms, np.float32, count)
        _check_array("codes", codes, np.uint8, code_bytes)
        key = random_key(name) if tensor is None else _word("tensor", tensor)
        rows = self._sizes.scaled_rows(coordinates, plan)
        scales = None if rows is None else RowScales(rows, self.pool)
        arrays: dict[str, Any] = {"residual": residual, "norms": norms, "codes": codes}
        return Partition(name, key, coordinates, padded, ends_array(plan.ends), scales=scales, **arrays)

    def measure(self, partition: Partition, gradient: Any, *, round: int, bfloat16: bool = False) -> F32:
        """Begin a round, and return the norms of the rotated gradient + residual, and of its rows.

        partition: a partition of this compressor.
        gradient: array or CPU tensor with `partition.coordinates` elements, unchanged until encode().
        round: 32 bits, the same on all workers, and unique for a partition.
        bfloat16: whether a uint16 gradient holds the bits of bfloat16, default False.
        """
        flat = gradient_view(gradient, bfloat16=bfloat16)
        if flat.size != partition.coordinates:
            raise InputError(f"gradient of {partition.name!r} has {flat.size} coordinates, not {partition.coordinates}")
        partition.round = _word("round", round)
        _core.block_norms(flat, partition.residual, partition.measured, **self._blocks(partition))
        if partition.scales is not None:
            partition.scales.measure(flat, partition.residual, partition.norms)
        partition.gradient, partition.stage = flat, _Stage.MEASURED
        return partition.norms

    def encode(self, partition: Partition, max_norms: F32) -> U8:
        """Rotate, quantize and pack the measured gradient, keep its residual, and return partition.codes.

        partition: a partition after measure().
        max_norms: float32[B + S], the maximum of partition.norms over the workers.

        If a gradient is not finite on any worker, the residual stays unchanged, because the step will be skipped. Norms
        of this worker count, too: with a quorum the maximum may exclude them.
        """
        _check_array("max_norms", max_norms, np.float32, len(partition.norms))
        partition.require(_Stage.MEASURED)
        assert partition.gradient is not None
        partition.max_norms[:] = max_norms
        partition.residual_kept = partition.residual is not None and _is_finite(partition)
        scales, gradient, carried = partition.scales, partition.gradient, partition.residual
        partition.limits = partition.max_norms if scales is None else scales.take(partition.max_norms)
        if scales is not None:
            gradient = scales.scale(gradient, carried)
            carried = np.zeros_like(gradient) if partition.residual_kept else None
        partition.clamped = _core.encode(
            gradient,
            carried,
            partition.limits,
            partition.codes,
            values=self.table.array,
            bits=self.table.bits,
            threshold=self._threshold,
            domain=self.rounding.domain,
            phase=self.rounding.phase,
            keep_error=partition.residual_kept,
            **self._blocks(partition),
            **self._key(partition),
        )
        if scales is not None and partition.residual is not None and carried is not None:
            scales.unscale(carried, partition.residual)
        partition.gradient, partition.stage = None, _Stage.ENCODED
        return partition.codes

    def decode(
        self,
        partition: Partition,
        aggregate: U8 | U16,
        contributions: U8 | U16,
        out: Any,
        *,
        codes_per_chunk: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        """Write the average gradient to `out`. Repeated calls are allowed.

        partition: a partition after encode().
        aggregate: uint8 or uint16 (value_bits) [partition.padded], the sum of table values.
        contributions: uint8 or uint16, number of workers in each chunk; a chunk with 0 becomes zeros.
        out: array or CPU tensor, as the gradient.
        codes_per_chunk: coordinates of a chunk; default: one chunk with all coordinates.
        bfloat16: whether `out` is uint16 for the bits of bfloat16, default False.

        A block whose maximum norm is not finite becomes NaN, so that a GradScaler detects it.
        """
        partition.require(_Stage.ENCODED)
        codes_per_chunk = codes_per_chunk or max(partition.padded, MIN_CODES_PER_PACKET)
        _check_array("aggregate", aggregate, value_dtype(self.resolved.value_bits), partition.padded)
        chunks = -(-partition.padded // codes_per_chunk)
        wide = isinstance(contributions, np.ndarray) and contributions.dtype == np.uint16
        _check_array("contributions", contributions, np.uint16 if wide else np.uint8, chunks)
        flat = gradient_view(out, bfloat16=bfloat16)
        if flat.size != partition.coordinates or not flat.flags.writeable:
            raise InputError(f"out must be a writable array of {partition.coordinates} elements")
        rows = partition.scales
        average = flat if rows is None else np.empty(partition.coordinates, np.float32)
        _core.decode(
            aggregate,
            contributions.astype(np.uint16, copy=False),
            partition.limits,
            average,
            coordinates=partition.coordinates,
            codes_per_chunk=codes_per_chunk,
            granularity=self.table.granularity,
            threshold=self._decode_threshold,
            **self._blocks(partition),
            **self._key(partition),
        )
        if rows is not None:
            rows.unscale(average, flat)

    def _blocks(self, partition: Partition) -> dict[str, Any]:
        return {"rotation_block": self.codes.rotation_block, "ends": partition.ends, "pool": self.pool}

    def _key(self, partition: Partition) -> dict[str, Any]:
        return {"seed": self.codes.seed, "tensor": partition.tensor, "round": partition.round}


def _is_finite(partition: Partition) -> bool:
    measured = partition.measured
    return all(bool((norms <= LARGEST_NORM).all()) for norms in (measured, partition.max_norms[: len(measured)]))


def _word(name: str, value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise InputError(f"{name} must be an integer of 32 bits, not {value!r}")
    return value


def _check_array(name: str, array: object, dtype: npt.DTypeLike, size: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (size,):
        given = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(f"{name} must be {np.dtype(dtype)}[{size}], not {given}")
    if not array.flags.c_contiguous:
        raise InputError(f"{name} is not contiguous: pass numpy.ascontiguousarray({name})")
