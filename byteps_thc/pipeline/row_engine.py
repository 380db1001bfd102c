"""What engines of a reduce-scatter have in common: they give every rank the average of its own row of a ShardMatrix."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.futures import Future

from byteps_thc.errors import InputError
from byteps_thc.pipeline.agreement import Contents, RankAgreement
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.shard_matrix import ExactColumns, ShardMatrix
from byteps_thc.pipeline.stage_threads import Stage
from byteps_thc.pipeline.threaded_engine import ThreadedEngine
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.communicator import Communicator, Waitable

_HINT = (
    "All ranks must have parameters of the same names and sizes in the same order, use and freeze the same ones (or "
    "call set_reduce_scatter_unused_params(True)), and have the same loss scale"
)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class NextGradient:
    """What all ranks must have as the next one. contents: of the gradient. gradient: what the future is to give."""

    contents: Contents
    gradient: Tensor
    future: Future[Tensor] = field(default_factory=Future, kw_only=True)

    def wait(self) -> Tensor:
        """Wait for the future, and return its value. Raises the engine's error."""
        return self.future.wait()


@dataclass
class RowReduction(NextGradient):
    """A gradient on its way to its average, `gradient`; in host memory.

    source: what is averaged. round: the random key. residual: of the source, in engines that keep them that way. exact:
    what travels uncompressed, under way.
    """

    matrix: ShardMatrix
    source: Tensor
    round: int
    residual: Tensor | None = None
    exact: tuple[ExactColumns, Waitable | None] | None = None
    _taken: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.future.add_done_callback(lambda _: self._taken.set())

    def release_source(self) -> None:
        """Let go of the gradient: what is needed of it is in codes."""
        self.source = self.source.new_empty(0)
        self._taken.set()

    def wait_taken(self) -> None:
        """Wait until the gradient's memory is free again. Raises the engine's error."""
        self._taken.wait()
        if self.future.done():
            self.future.wait()


class RowEngine(ThreadedEngine[NextGradient]):
    """Averages rows over the ranks of a process group (gloo or NCCL).

    All ranks of the group must make it, with the same settings (ConfigurationError naming what differs).

    communicator: its operations are started by the thread of the first stage, and nobody else. begin: what the first
    stage does with a gradient, once all ranks have the same. later: the other stages.
    """

    def __init__(
        self,
        policy: CompressionPolicy,
        communicator: Communicator,
        state: EngineState,
        begin: tuple[str, Callable[[RowReduction], Iterable[object]]],
        later: Sequence[tuple[str, Stage]] = (),
        clock: WorkClock | None = None,
    ) -> None:
        self.policy = policy
        self._communicator = communicator
        self._agreement = RankAgreement(communicator, state.workers, _HINT)
        self._recorder = state.recorder
        name, self._begin = begin
        super().__init__(state, [(name, self._begin_same), *later], clock)

    @property
    def compressing(self) -> bool:
        """Whether gradients of the current step are compressed."""
        return self.policy.compresses(self._state.step)

    def require_same(self, label: str, matrix: ShardMatrix) -> None:
        """Wait until it is known that a gradient reduced without this engine is the next one on all ranks.

        Raises what reduce_scatter() gives. label, matrix: as there; the gradient may lack some of the parameters.
        """
        asked = NextGradient(Contents(label, matrix.parameters), torch.empty(0))
        self._submit(asked)
        asked.wait()

    def reduce_scatter(self, label: str, matrix: ShardMatrix, gradient: Tensor, output: Tensor) -> RowReduction:
        """Start writing the average over the ranks of row `worker` to `output`.

        label: describes the gradient. When not all ranks have that as the next one, with the same parameters and loss
        scale, all get InputError, which says what each has; otherwise they would wait for one another until the
        deadline, or sum gradients of different parameters. gradient:
        [matrix.size], output: [matrix.columns]; float32, float16 or bfloat16, contiguous, CPU, or CUDA, which is staged
        through the host and done on return. The gradient is used as scratch. What travels together with a gradient that
        is not finite on any rank (THC: a rotation block) becomes NaN. Raises InputError for other tensors.
        """
        require_fitting(matrix, self.workers, gradient, output)
        result = torch.empty_like(output, device="cpu") if output.is_cuda else output
        residual = self._residual_of(matrix)
        contents = Contents(label, matrix.parameters)
        reduction = RowReduction(contents, result, matrix, gradient.cpu(), self._state.next_round(), residual)
        self._submit(reduction)
        if result is not output:
            output.copy_(reduction.wait())
        return reduction

    def count_uncompressed(self, elements: int, element_bytes: int) -> None:
        """Count a gradient that was reduced without this engine."""
        self._recorder.add_gradient(uncompressed=elements)
        self._recorder.add_collective(elements * element_bytes, self.workers)

    @abstractmethod
    def _residual_of(self, matrix: ShardMatrix) -> Tensor | None:
        """Return what RowReduction has; by the calling thread, which alone moves residuals."""

    def _submit(self, gradient: NextGradient) -> None:
        self._in_flight.begin(gradient.contents.label, gradient)
        self._threads.submit(gradient)

    def _begin_same(self, gradient: NextGradient) -> Iterable[object]:
        self._agreement.require_same(gradient.contents, self._state.loss_scale)
        if isinstance(gradient, RowReduction):
            return self._begin(gradient)
        self._finish(gradient)
        return ()

    def _finish(self, gradient: NextGradient) -> None:
        self._in_flight.finish(gradient.contents.label, gradient)

    def _start_exact(self, reduction: RowReduction) -> None:
        """Start summing the columns that travel uncompressed, if any. By the first stage."""
        exact = ExactColumns(reduction.matrix, reduction.source)
        reduction.exact = exact, self._communicator.sum_(exact.sums) if reduction.matrix.exact else None

    def _finish_exact(self, reduction: RowReduction) -> None:
        """Write their average."""
        assert reduction.exact is not None
        exact, exact_sum = reduction.exact
        if exact_sum is not None:
            exact_sum.wait()
            if not exact.sums.isfinite().all():
                self._state.rollback.request()
            exact.write_average(reduction.gradient, self.worker, torch.tensor(float(self.workers)))
        self._recorder.add_gradient(uncompressed=exact.sums.numel())
        self._recorder.add_collective(2 * exact.sums.nbytes, self.workers)


def require_fitting(matrix: ShardMatrix, workers: int, gradient: Tensor, output: Tensor) -> None:
    """Raise InputError for tensors that reduce_scatter() does not take."""
    if matrix.rows != workers or gradient.numel() != matrix.size or output.numel() != matrix.columns:
        raise InputError(
            f"matrix {matrix.key!r} of {matrix.rows} x {matrix.columns} does not fit {workers} ranks, "
            f"a gradient of {gradient.numel()} and an output of {output.numel()} elements"
        )
    for tensor in (gradient, output):
        if tensor.dtype not in _DTYPES or not tensor.is_contiguous():
            raise InputError(f"gradient is {tensor.dtype}; float32, float16 or bfloat16, contiguous, is needed")
