"""A worker's side of THC: gradient to codes, aggregate to average gradient (paper, sections 4 to 6).

The network runs between the stages, so each is a call of its own:

    partition = compressor.rotate("layer1.weight", gradient, tensor=0, round=step)    # partition.norms
    compressor.quantize(partition, max_norms)         # after the preliminary stage; partition.codes
    compressor.keep_residual(partition)               # error feedback, while the codes travel
    compressor.decode(partition, aggregate, contributions, out)

Calls for different partitions may come from different threads; those for one partition must be in order. The kernels
release the GIL.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_thc import _core
from byteps_thc.arrays import F32, U8, U16, gradient_view, value_dtype
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.errors import ConfigurationError, InputError
from byteps_thc.wire.layout import MIN_CODES_PER_PACKET

#: Largest max norm whose residual is kept. Beyond it fp32 intermediates (up to 2^10 norms) may overflow: such a step is
#: as lost as one with infinite gradients, and a GradScaler will skip it.
LARGEST_NORM = 2.0**96

_STATE_VERSION = 1


class _Stage(enum.Enum):
    IDLE = "no gradient yet"
    MEASURED = "measured"
    ROTATED = "rotated"
    QUANTIZED = "quantized"
    RESIDUAL_KEPT = "quantized, residual kept"


@dataclass(frozen=True)
class PartitionStatistics:
    """What quantization did to the last gradient (residual included) of a partition.

    clamped_fraction: share of the coordinates beyond the clamp, about p when all workers have the same norm.
    relative_error: |lost|^2 / |gradient + residual|^2, this worker's normalised squared error; NaN without error
    feedback, before keep_residual, or when the gradient is zero.
    """

    clamped_fraction: float
    relative_error: float


class Partition:
    """Buffers and progress of one partition; made by Compressor.rotate and used again every round.

    norms: float32[B], Euclidean norms of the rotation blocks, to be max-reduced over the workers. codes: uint8, packed
    codes of `coordinates` coordinates, valid after quantize or encode. tensor, round: the key of the current gradient.
    padded: coordinates with padding; the codes of all of them travel.
    """

    def __init__(
        self, name: str, coordinates: int, config: ThcConfig, *, residual: F32 | None = None, codes: U8 | None = None
    ) -> None:
        padded = _core.padded_size(coordinates, config.rotation_block)
        blocks = len(_core.block_sizes(coordinates, config.rotation_block))
        self.name = name
        self.coordinates = coordinates
        self.tensor = 0
        self.round = 0
        self.norms: F32 = np.zeros(blocks, np.float32)
        self.codes: U8 = np.zeros(_core.code_bytes(padded, config.bits), np.uint8) if codes is None else codes
        self.clamped = 0
        self.stage = _Stage.IDLE
        self.padded = padded
        self._rotated: F32 | None = None
        self.max_norms: F32 = np.zeros(blocks, np.float32)
        if residual is None and config.error_feedback:
            residual = np.zeros(coordinates, np.float32)
        self.residual = residual

    @property
    def rotated(self) -> F32:
        """float32[padded], room for the rotated gradient; made when it is needed, which with encode() is never."""
        if self._rotated is None:
            self._rotated = np.zeros(self.padded, np.float32)
        return self._rotated

    @property
    def residual_kept(self) -> bool:
        """Whether keep_residual() took the last gradient's error; not without error feedback or if it is not finite."""
        return self.stage is _Stage.RESIDUAL_KEPT

    def require(self, *stages: _Stage) -> None:
        """Raise InputError unless the partition is in one of these stages."""
        if self.stage not in stages:
            raise InputError(f"partition {self.name!r} is {self.stage.value}: call rotate, quantize, decode in order")


class Compressor:
    """Compresses one worker's gradients and decodes the averages. THC and Uniform THC differ in their table only.

    config: the same on all workers; a table that is chosen already (ThcConfig.resolve) is kept. workers, worker: number
    of workers and this one's id. Raises ConfigurationError when the settings cannot work for that many workers. Buffers
    are allocated in a partition's first round.
    """

    def __init__(self, config: ThcConfig | ResolvedConfig, *, workers: int, worker: int) -> None:
        if not 0 <= worker < workers:
            raise ConfigurationError(f"worker must be in 0 .. {workers - 1}, not {worker}")
        self.resolved = config if isinstance(config, ResolvedConfig) else config.resolve(workers)
        if self.resolved.workers != workers:
            raise ConfigurationError(f"settings for {self.resolved.workers} workers do not do for {workers}")
        self.config = self.resolved.config
        self.table = self.resolved.table
        self.workers = workers
        self.worker = worker
        self._partitions: dict[str, Partition] = {}

    def layout(self, coordinates: int) -> tuple[int, int]:
        """Return (rotation blocks, padded coordinates) of a partition: sizes of its norms and of its aggregate."""
        block = self.config.rotation_block
        return len(_core.block_sizes(coordinates, block)), _core.padded_size(coordinates, block)

    def partition(
        self, name: str, coordinates: int, *, residual: F32 | None = None, codes: U8 | None = None
    ) -> Partition:
        """Make the partition `name`, which must be new, with arrays of the caller's for its residual and codes.

        residual: float32[coordinates], what was lost before; only with error feedback. codes: uint8, as long as
        Partition.codes. rotate() makes partitions that are not there, with arrays of their own.
        """
        if name in self._partitions:
            raise InputError(f"there is a partition {name!r} already")
        _, padded = self.layout(coordinates)
        if residual is not None:
            _check_array("residual", residual, np.float32, coordinates)
        if codes is not None:
            _check_array("codes", codes, np.uint8, _core.code_bytes(padded, self.config.bits))
        if residual is not None and not self.config.error_feedback:
            raise ConfigurationError("a residual is of no use without error feedback")
        partition = self._partitions[name] = Partition(name, coordinates, self.config, residual=residual, codes=codes)
        return partition

    def rotate(self, name: str, gradient: Any, *, tensor: int, round: int, bfloat16: bool = False) -> Partition:
        """Add the residual kept under `name`, rotate, and return the partition with its norms.

        gradient: see arrays.gradient_view; its size must stay the same from round to round. It is not modified.
        tensor, round: 32-bit keys of the random signs, the same on all workers; never use a pair twice.
        """
        flat = gradient_view(gradient, bfloat16=bfloat16)
        partition = self._partition(name, flat.size)
        partition.tensor, partition.round = _word("tensor", tensor), _word("round", round)
        _core.rotate(
            flat,
            partition.residual,
            partition.rotated,
            partition.norms,
            rotation_block=self.config.rotation_block,
            **self._key(partition),
        )
        partition.stage = _Stage.ROTATED
        return partition

    def quantize(self, partition: Partition, max_norms: F32) -> U8:
        """Quantize and pack the rotated gradient; return partition.codes.

        max_norms: float32[B], the maximum of partition.norms over the workers.
        """
        partition.require(_Stage.ROTATED)
        _check_array("max_norms", max_norms, np.float32, len(partition.norms))
        partition.max_norms[:] = max_norms
        partition.clamped = _core.quantize(
            partition.rotated,
            partition.max_norms,
            partition.codes,
            coordinates=partition.coordinates,
            rotation_block=self.config.rotation_block,
            values=self.table.array,
            bits=self.config.bits,
            threshold=self.table.threshold,
            worker=self.worker,
            keep_error=self.config.error_feedback,
            **self._key(partition),
        )
        partition.stage = _Stage.QUANTIZED
        return partition.codes

    def keep_residual(self, partition: Partition) -> None:
        """Keep what quantization lost for the next gradient of this name; nothing without error feedback.

        A gradient that is not finite, on this worker or another, leaves the residual as it was: the step will be
        skipped, and NaN must not stay behind. Both norms count: with a quorum the maximum may be without this worker's.
        """
        partition.require(_Stage.QUANTIZED)
        if partition.residual is None or not _is_finite(partition):
            return
        _core.inverse_rotate(
            partition.rotated,
            partition.residual,
            rotation_block=self.config.rotation_block,
            **self._key(partition),
        )
        partition.stage = _Stage.RESIDUAL_KEPT

    def measure(self, name: str, gradient: Any, *, tensor: int, round: int, bfloat16: bool = False) -> Partition:
        """Return the partition with its norms, for encode(); arguments as for rotate().

        measure() and encode() are rotate(), quantize() and keep_residual() with fewer passes through memory, for
        callers that can keep the gradient until the maximum norms are known.
        """
        flat = gradient_view(gradient, bfloat16=bfloat16)
        partition = self._partition(name, flat.size)
        partition.tensor, partition.round = _word("tensor", tensor), _word("round", round)
        _core.block_norms(flat, partition.residual, partition.norms, rotation_block=self.config.rotation_block)
        partition.stage = _Stage.MEASURED
        return partition

    def encode(self, partition: Partition, gradient: Any, max_norms: F32, *, bfloat16: bool = False) -> U8:
        """Rotate, quantize and pack the gradient that was measured, keep its residual, and return partition.codes.

        max_norms: as for quantize(). A gradient that is not finite leaves the residual as it was: see keep_residual().
        """
        partition.require(_Stage.MEASURED)
        _check_array("max_norms", max_norms, np.float32, len(partition.norms))
        flat = gradient_view(gradient, bfloat16=bfloat16)
        if flat.size != partition.coordinates:
            raise InputError(f"gradient of {partition.name!r} has {flat.size} coordinates, not {partition.coordinates}")
        partition.max_norms[:] = max_norms
        keep = partition.residual is not None and _is_finite(partition)
        partition.clamped = _core.encode(
            flat,
            partition.residual,
            partition.max_norms,
            partition.codes,
            rotation_block=self.config.rotation_block,
            values=self.table.array,
            bits=self.config.bits,
            threshold=self.table.threshold,
            worker=self.worker,
            keep_error=keep,
            **self._key(partition),
        )
        partition.stage = _Stage.RESIDUAL_KEPT if keep else _Stage.QUANTIZED
        return partition.codes

    def decode(
        self,
        partition: Partition,
        aggregate: U8 | U16,
        contributions: U8,
        out: Any,
        *,
        codes_per_chunk: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        """Write the average gradient to `out`.

        aggregate: uint8 or uint16 (value_bits) [partition.padded], the sum of table values. contributions: uint8, how
        many workers are in each chunk of codes_per_chunk coordinates (default: one chunk with all of them); 0 gives
        zeros. out: like the gradient. Blocks whose max norm is not finite become NaN, so that a GradScaler sees them.
        """
        partition.require(_Stage.QUANTIZED, _Stage.RESIDUAL_KEPT)
        codes_per_chunk = codes_per_chunk or max(partition.padded, MIN_CODES_PER_PACKET)
        _check_array("aggregate", aggregate, value_dtype(self.resolved.value_bits), partition.padded)
        chunks = -(-partition.padded // codes_per_chunk)
        _check_array("contributions", contributions, np.uint8, chunks)
        flat = gradient_view(out, bfloat16=bfloat16)
        if flat.size != partition.coordinates or not flat.flags.writeable:
            raise InputError(f"out must be a writable array of {partition.coordinates} elements")
        _core.decode(
            aggregate,
            contributions,
            partition.max_norms,
            flat,
            coordinates=partition.coordinates,
            codes_per_chunk=codes_per_chunk,
            rotation_block=self.config.rotation_block,
            granularity=self.table.granularity,
            threshold=self.table.threshold,
            **self._key(partition),
        )

    def statistics(self, partition: Partition) -> PartitionStatistics:
        """Return clamping and error of the last round; costs one pass over the residual."""
        clamped = partition.clamped / max(partition.coordinates, 1)
        energy = float(np.square(partition.norms, dtype=np.float64).sum())
        if partition.residual is None or partition.stage is not _Stage.RESIDUAL_KEPT or energy == 0:
            return PartitionStatistics(clamped, float("nan"))
        return PartitionStatistics(clamped, float(np.dot(partition.residual, partition.residual)) / energy)

    @property
    def residuals(self) -> Mapping[str, F32]:
        """The residual of every name seen, as views; empty without error feedback."""
        return {name: p.residual for name, p in self._partitions.items() if p.residual is not None}

    def reset(self) -> None:
        """Forget all partitions and their residuals."""
        self._partitions.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what a checkpoint needs: residuals and last rounds by name, and whose they are."""
        return self._identity() | {
            "residuals": {name: residual.copy() for name, residual in self.residuals.items()},
            "rounds": {name: partition.round for name, partition in self._partitions.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same worker and settings, in place of all that is kept here.

        ConfigurationError when it is of another worker, of other settings or damaged; then nothing has changed.
        """
        mine = self._identity()
        missing = [key for key in (*mine, "residuals", "rounds") if key not in state]
        if missing:
            raise ConfigurationError(f"not the state of a Compressor: {', '.join(missing)} missing")
        for key, value in mine.items():
            if state[key] != value:
                raise ConfigurationError(f"state does not fit: its {key} is {state[key]!r}, here it is {value!r}")
        partitions = {}
        for name, residual in state["residuals"].items():
            if not _is_residual(residual):
                raise ConfigurationError(f"residual of {name!r} is not a finite 1-D float32 array")
            partition = Partition(name, residual.size, self.config)
            partition.residual = residual.copy()
            partition.round = _word("round", state["rounds"].get(name))
            partitions[name] = partition
        self._partitions = partitions

    def _identity(self) -> dict[str, Any]:
        return {"version": _STATE_VERSION, "worker": self.worker, "config": self.config.model_dump()}

    def _partition(self, name: str, coordinates: int) -> Partition:
        partition = self._partitions.get(name)
        if partition is None:
            partition = self._partitions.setdefault(name, Partition(name, coordinates, self.config))
        if partition.coordinates != coordinates:
            raise InputError(
                f"gradient of {name!r} has {coordinates} coordinates, and had {partition.coordinates} before; "
                "give it another name, or reset() the compressor"
            )
        return partition

    def _key(self, partition: Partition) -> dict[str, int]:
        return {"seed": self.config.seed, "tensor": partition.tensor, "round": partition.round}


def _is_finite(partition: Partition) -> bool:
    return all(bool((norms <= LARGEST_NORM).all()) for norms in (partition.norms, partition.max_norms))


def _is_residual(array: object) -> bool:
    return (
        isinstance(array, np.ndarray)
        and array.dtype == np.float32
        and array.ndim == 1
        and bool(np.isfinite(array).all())
    )


def _word(name: str, value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise InputError(f"{name} must be an integer of 32 bits, not {value!r}")
    return value


def _check_array(name: str, array: object, dtype: npt.DTypeLike, size: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (size,):
        given = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(f"{name} must be {np.dtype(dtype)}[{size}], not {given}")
    if not array.flags.c_contiguous:
        raise InputError(f"{name} is not contiguous")
