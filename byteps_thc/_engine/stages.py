"""The stages of a gradient, wherever it is compressed, piece by piece (layout.py):

    measure -> encode -> sum -> decode

Exact values travel beside the pieces: they leave once all workers are known to have the same gradient, and the last
stage puts them back. drivers.py calls the stages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.futures import Future

from byteps_thc._engine.agreement import Contents, Questions, how_it_travels
from byteps_thc._engine.layout import Layout, PlacedPiece, Round
from byteps_thc._engine.residuals import Rollback
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.communicator import ExactSum, Waitable

_NOTHING = torch.empty(0, device="cpu")


@dataclass
class ExactPart:
    """The exact values of a gradient: float32[..., n], or float64; their sum over the ranks once `sum` is waited for.

    sum: None: not started yet. whole: they are the whole gradient.
    """

    values: Tensor
    whole: bool
    sum: Waitable | None = None


@dataclass(eq=False)
class Reduction:
    """A gradient on its way to its average; the future returns `gradient`.

    source: the input, the same tensor in an all-reduce. layout: None: ranks only compare `contents`, nothing is
    averaged. staged: the source where the kernels work. out: the place of the average there. exact: exact values.
    """

    key: str
    contents: Contents
    gradient: Tensor
    source: Tensor
    layout: Layout | None
    round: Round
    future: Future[Tensor]
    staged: Tensor
    out: Tensor
    exact: ExactPart | None = None
    _taken: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> Tensor:
        """Wait for the average, and return it. Raises the engine's error."""
        return self.future.wait()

    def wait_taken(self) -> None:
        """Wait until the memory of a separate source is free again. Raises the engine's error."""
        self._taken.wait()
        if self.future.done():
            self.future.wait()

    def take_no_longer(self) -> None:
        """Let wait_taken() return if the engine has ended first."""
        self.future.add_done_callback(lambda _: self._taken.set())

    def release_source(self) -> None:
        """Drop the source: the codes have its values."""
        self.source = self.staged = _NOTHING
        self._taken.set()


@dataclass(frozen=True)
class Task:
    """A piece of a gradient; None: a gradient without pieces. last: of its gradient."""

    job: Reduction
    placed: PlacedPiece | None
    last: bool


class Stages:
    """The stages, each called in the order of the gradients.

    exact: sums exact values. finish: called with key and future of each averaged gradient.
    """

    def __init__(
        self,
        recorder: StatsRecorder,
        rollback: Rollback,
        *,
        worker: int,
        workers: int,
        device: torch.device,
        exact: ExactSum,
        questions: Questions,
        finish: Callable[[str, Future[Tensor], Tensor], None],
    ) -> None:
        self._recorder, self._rollback = recorder, rollback
        self._worker, self._workers = worker, workers
        self._divisor = torch.tensor(float(workers), device=device)
        self._exact = exact
        self._questions = questions
        self._finish = finish

    def measure(self, job: Reduction) -> Iterator[Task]:
        """Take out exact values, and send the norms of the pieces."""
        layout = job.layout
        if layout is None or layout.asked_first:
            self._ask(job)
        if layout is None:
            yield Task(job, None, last=True)
            return
        job.staged = job.source if layout.staging is None else layout.staging.fetch(job.source)
        job.out = job.staged if job.source is job.gradient else job.gradient
        self._take_exact(job, layout)
        rows = job.staged.view(layout.rows, layout.columns)
        placed = None
        for placed in layout.pieces(job.round):
            placed.piece.measure(rows[:, placed.span], job.round.number)
            yield Task(job, placed, placed.last)
        if placed is None:
            yield Task(job, None, last=True)

    def encode(self, task: Task) -> Iterator[Task]:
        """Send the codes, and exact values once no worker can have another gradient."""
        job, layout = task.job, task.job.layout
        if task.placed is not None:
            task.placed.piece.encode()
        elif layout is not None:
            self._ask(job)
        if job.exact is not None and job.exact.sum is None:
            self._start_exact(job.exact)
        if task.last and job.source is not job.gradient:
            job.release_source()
        yield task

    def sum(self, task: Task) -> Iterator[Task]:
        """Send the averages, if this worker has a share in them; with the last piece, the residual is complete."""
        if task.placed is not None:
            task.placed.piece.sum()
            if task.last:
                assert task.job.layout is not None
                _clear_residual(task.job.layout)
        yield task

    def decode(self, task: Task) -> Iterator[Task]:
        """Write the average; with the last piece, put back exact values."""
        job = task.job
        if task.placed is not None:
            task.placed.piece.decode(job.out[task.placed.span])
        if task.last:
            if job.layout is not None:
                self._finish_exact(job, job.layout)
                if job.layout.staging is not None:
                    job.layout.staging.put_back(job.gradient)
            self._finish(job.key, job.future, job.gradient)
        return iter(())

    def _ask(self, job: Reduction) -> None:
        facts = [how_it_travels(job.layout is not None and job.round.compress), str(job.source.dtype)]
        if job.layout is not None and not job.layout.extent.sharded:
            facts.insert(0, f"round {job.round.number}")
        self._questions.require_same(job.contents, job.source.numel(), job.round.number, *facts)

    def _take_exact(self, job: Reduction, layout: Layout) -> None:
        if layout.pieces_take_exact and job.round.compress:
            exact = 0 if layout.exact_index is None else layout.rows * layout.exact_index.numel()
            self._recorder.add_gradient(compressed=layout.compressed, uncompressed=exact)
            return
        job.exact = _exact_part(layout, job.staged, job.round.compress)
        exact = 0 if job.exact is None else job.exact.values.numel()
        self._recorder.add_gradient(compressed=layout.compressed if job.round.compress else 0, uncompressed=exact)

    def _start_exact(self, exact: ExactPart) -> None:
        self._recorder.add_collective(2 * exact.values.nbytes, self._workers)
        exact.sum = self._exact(exact.values)

    def _finish_exact(self, job: Reduction, layout: Layout) -> None:
        if job.exact is None:
            return
        part, out = job.exact, job.out
        assert part.sum is not None
        part.sum.wait()
        if self._rollback.active:
            self._rollback.request_unless(part.values.isfinite().all())
        # A tensor: torch multiplies by the inverse of a number on a GPU, with other bits.
        average = part.values.div_(self._divisor)
        if not part.whole:
            assert layout.exact_index is not None
            own = average[self._worker] if layout.rows > 1 else average
            out.index_copy_(0, layout.exact_index, own.to(out.dtype))
        elif average is not out:
            out.copy_(average)


def _exact_part(layout: Layout, gradient: Tensor, compress: bool) -> ExactPart | None:
    """Take out exact values, and set them and padding to zero; None: there are none."""
    if not compress:
        values = gradient if gradient.dtype == torch.float64 else gradient.float()  # no copy of float32
        return ExactPart(values, whole=True)
    part = None
    if layout.exact_index is not None:
        rows = gradient.view(layout.rows, layout.columns) if layout.rows > 1 else gradient
        taken = rows.index_select(-1, layout.exact_index)
        if layout.exact_values is None:
            layout.exact_values = torch.zeros(taken.shape, device=taken.device)
        part = ExactPart(layout.exact_values.copy_(taken), whole=False)
    if layout.clear_index is not None:
        gradient.index_fill_(0, layout.clear_index, 0.0)
    return part


def _clear_residual(layout: Layout) -> None:
    """Clear the quantization error of padding and exact values, which is no gradient."""
    if layout.residual is not None and layout.clear_index is not None:
        layout.residual.index_fill_(0, layout.clear_index, 0.0)
