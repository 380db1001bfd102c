"""What happens to a gradient buffer, stage by stage:

    measure -> [norms travel] -> encode -> [codes travel] -> sum -> [sums travel] -> decode

Each function is run by a thread of its own (pipeline.py), so that buffers and pieces overlap. A transport moves what is
in brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.futures import Future

from byteps_thc.compressor import LARGEST_NORM
from byteps_thc.engines.lanes import Waitable
from byteps_thc.engines.layout import Layout, Piece
from byteps_thc.engines.step_backup import StepBackup
from byteps_thc.engines.transport import ExactSum, Transport
from byteps_thc.engines.work_clock import WorkClock
from byteps_thc.statistics import StatsRecorder


@dataclass
class Job:
    """A buffer on its way.

    round: the random key. compress: False: all of it travels exactly. host: the gradient in host memory.
    exact_values, exact_sum: what travels exactly, float32, and its sum under way.
    """

    gradient: Tensor
    layout: Layout
    round: int
    compress: bool
    future: Future[Tensor]
    host: Tensor
    exact_values: Tensor | None = None
    exact_sum: Waitable | None = None


@dataclass(frozen=True)
class Task:
    """A piece of a job; None: a job without pieces. last: of its job."""

    job: Job
    piece: Piece | None
    last: bool


class Stages:
    """The functions of the pipeline. finish: called with every job whose gradient is the average now."""

    def __init__(
        self,
        workers: int,
        transport: Transport,
        exact: ExactSum,
        recorder: StatsRecorder,
        clock: WorkClock,
        backup: StepBackup,
        finish: Callable[[Job], None],
    ) -> None:
        self._workers = workers
        self._transport, self._exact = transport, exact
        self._recorder, self._clock = recorder, clock
        self._backup = backup
        self._finish = finish

    def measure(self, job: Job) -> Iterator[Task]:
        """Start what travels exactly, and send the norms of the pieces."""
        job.host = job.layout.staging.fetch(job.gradient)
        self._start_exact(job)
        pieces = job.layout.pieces if job.compress else []
        for piece in pieces:
            with self._working("encode_ms"):
                job.layout.compressor.measure(
                    piece.partition.name, job.host[piece.span], tensor=piece.number, round=job.round
                )
            piece.transfer.send_norms(piece.partition.norms)
            yield Task(job, piece, piece is pieces[-1])
        if not pieces:
            yield Task(job, None, True)

    def encode(self, task: Task) -> Iterator[Task]:
        """Rotate, quantize and send the codes; keep the residual."""
        piece, layout = task.piece, task.job.layout
        if piece is not None:
            partition = piece.partition
            max_norms = piece.transfer.wait_norms()
            if not (max_norms <= LARGEST_NORM).all():
                self._backup.spoil()
            with self._working("encode_ms"):
                if partition.residual is not None:
                    self._backup.save(partition.residual)
                layout.compressor.encode(partition, task.job.host[piece.span], max_norms)
            piece.transfer.send_codes()
            if task.last and layout.residual is not None and layout.clear_index is not None:
                layout.residual.index_fill_(0, layout.clear_index, 0.0)
            self._recorder.add_quantization(
                coordinates=partition.coordinates,
                clamped=partition.clamped,
                energy=float(np.dot(partition.norms, partition.norms)),
                lost_energy=0.0 if partition.residual_kept else None,  # the engine measures it when somebody asks
            )
        yield task

    def sum(self, task: Task) -> Iterator[Task]:
        """Do this worker's share of the summing."""
        if task.piece is not None:
            task.piece.transfer.wait_codes()
            with self._working("encode_ms"):
                task.piece.transfer.send_sums()
        yield task

    def decode(self, task: Task) -> Iterator[Task]:
        """Write the average; with the last piece, put back what travelled exactly."""
        job, piece = task.job, task.piece
        if piece is not None:
            piece.transfer.wait_sums()
            with self._working("decode_ms"):
                sums, contributions = piece.transfer.aggregate()
                job.layout.compressor.decode(
                    piece.partition,
                    sums,
                    contributions,
                    job.host[piece.span],
                    codes_per_chunk=self._transport.codes_per_chunk,
                )
        if task.last:
            self._finish_exact(job)
            # Averages of finite norms can only leave the range of float16.
            if self._backup.active and job.host.dtype == torch.float16 and not job.host.isfinite().all():
                self._backup.spoil()
            job.layout.staging.put_back(job.gradient)
            self._finish(job)
        return iter(())

    def _start_exact(self, job: Job) -> None:
        """Take out what travels exactly: small parameters, which then are zero in the pieces like padding, or all."""
        layout = job.layout
        if not job.compress:
            job.exact_values = job.host.float()  # the same tensor when it is float32 already
        elif layout.exact_index is not None:
            job.exact_values = layout.exact_values.copy_(job.host[layout.exact_index])
        if job.compress and layout.clear_index is not None:
            job.host.index_fill_(0, layout.clear_index, 0.0)
        exact = 0
        if job.exact_values is not None:
            exact = job.exact_values.numel()
            job.exact_sum = self._exact(job.exact_values)
            self._recorder.add_collective(2 * job.exact_values.nbytes, self._workers)
        self._recorder.add_gradient(compressed=layout.size - exact, uncompressed=exact)

    def _finish_exact(self, job: Job) -> None:
        if job.exact_sum is None:
            return
        assert job.exact_values is not None
        job.exact_sum.wait()
        with self._working("decode_ms"):
            average = job.exact_values.div_(self._workers)
            if self._backup.active and not average.isfinite().all():
                self._backup.spoil()
            if job.compress:
                assert job.layout.exact_index is not None
                job.host.index_copy_(0, job.layout.exact_index, average.to(job.host.dtype))
            elif average is not job.host:
                job.host.copy_(average)

    @contextmanager
    def _working(self, figure: Literal["encode_ms", "decode_ms"]) -> Iterator[None]:
        with self._clock.working():
            start = perf_counter()
            yield
            self._recorder.add_time(**{figure: (perf_counter() - start) * 1e3})
