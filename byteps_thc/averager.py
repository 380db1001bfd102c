"""Gradients in, average gradients out: a Compressor and a Session as one pipeline over partitions.

    averager = GradientAverager(session, compressor)
    averager.average({"layer1.weight": gradient})          # in place

While a partition's norms or codes travel, the next ones are rotated and quantized and finished ones decoded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from byteps_thc.arrays import F32, U8, U16, gradient_view
from byteps_thc.compressor import Compressor, Partition
from byteps_thc.errors import ConfigurationError, InputError, TransportError
from byteps_thc.session import Session

#: Partitions rotated ahead of the one that waits for its maximum norms: hides the preliminary stage's round trip.
_LOOKAHEAD = 2
_MAX_PARTITIONS = 1 << 16  # `partition` of the wire header has 16 bits


@dataclass
class AverageStats:
    """Where the last average() spent its time. The three add up to almost all of it."""

    encode_ms: float = 0.0
    """rotation, quantization and error feedback"""
    communicate_ms: float = 0.0
    """waiting for the network with nothing left to compute"""
    decode_ms: float = 0.0
    """aggregate to average gradient"""
    coordinates: int = 0
    """of all gradients together"""
    lost_chunks: int = 0
    """packets whose coordinates were given up and count as zero (loss-tolerant mode, quorum)"""

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the block to `stage`_ms."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, f"{stage}_ms", getattr(self, f"{stage}_ms") + (time.perf_counter() - start) * 1e3)


@dataclass
class _Piece:
    """One partition of one gradient, and the buffers its results arrive in."""

    key: str
    number: int
    part: slice
    max_norms: F32
    aggregate: U8 | U16
    contributions: U8


@dataclass
class _Job:
    """A piece on its way through one average()."""

    piece: _Piece
    gradient: Any
    out: Any
    partition: Partition | None = field(default=None)
    stage: Any = field(default=None)


class GradientAverager:
    """Averages named gradients over the workers of a session.

    All workers must average the same names and sizes in the same order, call by call. session and compressor must be
    of the same worker and configuration (ConfigurationError otherwise). Not for several threads at a time.
    """

    def __init__(self, session: Session, compressor: Compressor) -> None:
        for setting in ("config", "worker", "workers"):
            ours, theirs = getattr(compressor, setting), getattr(session, setting)
            if ours != theirs:
                raise ConfigurationError(f"compressor and session must have the same {setting}: {ours} and {theirs}")
        self._session = session
        self._compressor = compressor
        self._pieces: dict[str, list[_Piece]] = {}
        self._partitions = 0
        #: average() calls so far; part of the random keys, so restore it with the compressor's state
        self.step = 0
        #: of the last average()
        self.stats = AverageStats()
        self._in_flight = False

    def average(self, gradients: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> None:
        """Write the average over the workers of every gradient to `out` (None: in place).

        gradients, out: C-contiguous float32 or float16 NumPy arrays, or torch CPU tensors of those or bfloat16 by name,
        any shape; a name's size never changes. Everything is checked before the first packet leaves, so InputError
        leaves the session usable.
        Other errors are the session's: DeadlineError, RestartError, TransportError; the session is over then. So it is
        when KeyboardInterrupt ends average() in the middle, because what is in flight still uses its buffers.
        """
        if self._in_flight:
            raise TransportError(
                "an earlier average() was interrupted: close the session and join again on all workers"
            )
        jobs = self._jobs(gradients, gradients if out is None else out)
        self.step += 1
        self.stats = AverageStats(coordinates=sum(job.gradient.size for job in jobs))
        self._in_flight = True
        for i, job in enumerate(jobs):
            self._rotate(job)
            if i >= _LOOKAHEAD:
                self._quantize(jobs[i - _LOOKAHEAD])
        for job in jobs[-_LOOKAHEAD:]:
            self._quantize(job)
        for job in jobs:
            self._decode(job)
        self._in_flight = False

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint of this worker needs: the compressor's state and the step."""
        return {"step": self.step, "compressor": self._compressor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same worker and settings.

        ConfigurationError when it is something else or damaged; then nothing has changed.
        """
        missing = [key for key in ("step", "compressor") if key not in state]
        if missing:
            raise ConfigurationError(f"not the state of a GradientAverager: {', '.join(missing)} missing")
        step = state["step"]
        if not isinstance(step, int) or not 0 <= step < 1 << 32:
            raise ConfigurationError(f"state is damaged: its step is {step!r}, not a number of average() calls")
        self._compressor.load_state_dict(state["compressor"])
        self.step = step

    def _jobs(self, gradients: Mapping[str, Any], out: Mapping[str, Any]) -> list[_Job]:
        """Check all arrays and cut them into partitions."""
        jobs = []
        for name, gradient in gradients.items():
            if name not in out:
                raise InputError(f"out has no array for gradient {name!r}")
            source, target = gradient_view(gradient), gradient_view(out[name])
            if source.size != target.size or not target.flags.writeable:
                raise InputError(f"out[{name!r}] must be a writable array of {source.size} elements")
            pieces = self._pieces_of(name, source.size)
            jobs += [_Job(piece, source[piece.part], target[piece.part]) for piece in pieces]
        return jobs

    def _pieces_of(self, name: str, size: int) -> list[_Piece]:
        pieces = self._pieces.get(name)
        if pieces is None:
            pieces = self._pieces[name] = [self._new_piece(name, part) for part in self._cut(size)]
        known = pieces[-1].part.stop if pieces else 0
        if known != size:
            raise InputError(f"gradient {name!r} had {known} elements before and has {size} now")
        return pieces

    def _cut(self, size: int) -> list[slice]:
        step = self._compressor.config.partition_coordinates
        return [slice(start, min(start + step, size)) for start in range(0, size, step)]

    def _new_piece(self, name: str, part: slice) -> _Piece:
        if self._partitions == _MAX_PARTITIONS:
            raise ConfigurationError(f"more than {_MAX_PARTITIONS} partitions: raise ThcConfig.partition_bytes")
        blocks, padded = self._compressor.layout(part.stop - part.start)
        piece = _Piece(
            key=f"{name}[{part.start}:{part.stop}]",
            number=self._partitions,
            part=part,
            max_norms=np.zeros(blocks, np.float32),
            aggregate=self._session.new_aggregate(padded),
            contributions=np.zeros(self._session.chunks(padded), np.uint8),
        )
        self._partitions += 1
        return piece

    def _rotate(self, job: _Job) -> None:
        piece = job.piece
        with self.stats.timed("encode"):
            job.partition = self._compressor.rotate(
                piece.key, job.gradient, tensor=piece.number, round=self.step, bfloat16=_is_bfloat16(job.gradient)
            )
        job.stage = self._session.push_norms(piece.number, job.partition.norms, piece.max_norms)

    def _quantize(self, job: _Job) -> None:
        assert job.partition is not None
        piece = job.piece
        with self.stats.timed("communicate"):
            self._session.wait_stage(job.stage)
        with self.stats.timed("encode"):
            codes = self._compressor.quantize(job.partition, piece.max_norms)
        job.stage = self._session.push_codes(piece.number, codes, piece.aggregate, piece.contributions)
        with self.stats.timed("encode"):
            # While the codes travel, and while the error is still in the cache.
            self._compressor.keep_residual(job.partition)

    def _decode(self, job: _Job) -> None:
        assert job.partition is not None
        piece = job.piece
        with self.stats.timed("communicate"):
            self._session.wait_stage(job.stage)
        with self.stats.timed("decode"):
            self._compressor.decode(
                job.partition,
                piece.aggregate,
                piece.contributions,
                job.out,
                codes_per_chunk=self._session.codes_per_packet,
                bfloat16=_is_bfloat16(job.out),
            )
        self.stats.lost_chunks += len(piece.contributions) - int(np.count_nonzero(piece.contributions))


def _is_bfloat16(view: Any) -> bool:
    """gradient_view gives uint16 for bfloat16 tensors alone."""
    return bool(view.dtype == np.uint16)
