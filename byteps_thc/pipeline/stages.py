"""What the threads of an engine do with a gradient buffer, a thread per stage of its pieces (piece.py):

    measure -> encode -> sum -> decode

Buffers and pieces overlap. What is not compressed travels beside the pieces: it leaves in the second stage, once all
workers are known to have the same gradient, and is put back in the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.futures import Future

from byteps_thc.pipeline.agreement import RankAgreement
from byteps_thc.pipeline.exact import ExactPart, finish_exact, take_exact
from byteps_thc.pipeline.kernels import Kernels
from byteps_thc.pipeline.piece import PieceTools, PlacedPiece
from byteps_thc.pipeline.prepared_buffer import StagedBuffer
from byteps_thc.transport.communicator import ExactSum


@dataclass
class Job:
    """A buffer on its way.

    round: the random key. compress: False: all of it travels exactly. staged: the gradient where the kernels work.
    exact: what travels exactly, under way.
    """

    gradient: Tensor
    prepared: StagedBuffer
    round: int
    compress: bool
    future: Future[Tensor]
    staged: Tensor
    exact: ExactPart | None = None


@dataclass(frozen=True)
class Task:
    """A piece of a job; None: a job without pieces. last: of its job."""

    job: Job
    placed: PlacedPiece | None
    last: bool


class Stages:
    """The functions of the threads, in which the stream of the kernels is the current one.

    agreement: asked about what has no pieces; None: exact sums go by the gradients' names. loss_scale: of gradients.
    finish: called with every job whose gradient is the average now, or will be when the stream gets there.
    """

    def __init__(
        self,
        tools: PieceTools,
        kernels: Kernels,
        exact: ExactSum,
        agreement: RankAgreement | None,
        loss_scale: Callable[[], float],
        finish: Callable[[Job], None],
    ) -> None:
        self._tools = tools
        self._view = kernels.view
        self._workers = torch.tensor(float(tools.compressor.workers), device=kernels.device)
        self._exact = kernels.sum_here(exact, tools.recorder)
        self._agreement, self._loss_scale = agreement, loss_scale
        self._finish = finish

    def measure(self, job: Job) -> Iterator[Task]:
        """Take out what travels exactly, and send the norms of the pieces."""
        job.staged = job.prepared.staging.fetch(job.gradient)
        self._take_exact(job)
        pieces = job.prepared.pieces if job.compress else []
        flat = self._view(job.staged)
        for placed in pieces:
            placed.piece.measure([flat[placed.span]], job.round)
            yield Task(job, placed, placed is pieces[-1])
        if not pieces:
            yield Task(job, None, True)

    def encode(self, task: Task) -> Iterator[Task]:
        """Send the codes, and what travels exactly once no worker can have another gradient."""
        job = task.job
        if task.placed is not None:
            task.placed.piece.encode()
            if task.last:
                job.prepared.clear_residual()
        elif self._agreement is not None:
            self._agreement.require_same(job.prepared.contents, self._loss_scale(), f"round {job.round}")
        if job.exact is not None and job.exact.sum is None:
            job.exact.start(self._exact, self._tools.recorder, self._tools.compressor.workers)
        yield task

    def sum(self, task: Task) -> Iterator[Task]:
        """Send the sums, if this worker has a share in them."""
        if task.placed is not None:
            task.placed.piece.sum()
        yield task

    def decode(self, task: Task) -> Iterator[Task]:
        """Write the average; with the last piece, put back what travelled exactly."""
        job = task.job
        if task.placed is not None:
            task.placed.piece.decode(self._view(job.staged)[task.placed.span])
        if task.last:
            self._finish_exact(job)
            rollback = self._tools.rollback
            # Averages of finite norms can only leave the range of float16.
            if rollback.active and job.staged.dtype == torch.float16 and not job.staged.isfinite().all():
                rollback.request()
            job.prepared.staging.put_back(job.gradient)
            self._finish(job)
        return iter(())

    def _take_exact(self, job: Job) -> None:
        prepared = job.prepared
        job.exact = take_exact(prepared, job.staged, job.compress)
        exact = 0 if job.exact is None else job.exact.values.numel()
        self._tools.recorder.add_gradient(compressed=prepared.size - exact, uncompressed=exact)

    def _finish_exact(self, job: Job) -> None:
        if job.exact is None:
            return
        job.exact.wait()
        with self._tools.working("decode_ms"):
            average = finish_exact(job.exact, job.prepared, job.staged, job.compress, self._workers)
            if self._tools.rollback.active and not average.isfinite().all():
                self._tools.rollback.request()
