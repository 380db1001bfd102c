"""What engines of a reduce-scatter have in common: they give every rank the average of its own row of a ShardMatrix."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from byteps_thc.errors import InputError, ThcError, TransportError
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.shard_matrix import ExactColumns, ShardMatrix
from byteps_thc.pipeline.statistics import CompressionStats
from byteps_thc.transport.communicator import Communicator, Waitable
from byteps_thc.transport.handshake import all_have_same

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class RowEngine(ABC):
    """Averages rows over the ranks of a process group (gloo or NCCL). Not for several threads at a time.

    All ranks of the group must make it, with the same settings (ConfigurationError naming what differs), and reduce the
    same layouts in the same order. An error ends the engine: later calls fail.
    """

    def __init__(self, policy: CompressionPolicy, communicator: Communicator, state: EngineState) -> None:
        self.workers, self.worker = state.workers, state.worker
        self.policy = policy
        self._communicator = communicator
        self._state = state
        self._recorder = state.recorder
        self._error: ThcError | None = None

    @property
    def compressing(self) -> bool:
        """Whether gradients of the current step are compressed."""
        return self.policy.compresses(self._state.step)

    def start_step(self) -> None:
        """Begin an optimizer step; called once, before its first gradient."""
        self._state.start_step()

    def require_same(self, gradient: str) -> None:
        """Raise InputError on all ranks unless this gradient is the next one on all of them; gradient: describes it.

        Otherwise ranks would wait for one another until the deadline, or sum gradients of different parameters. Raises
        TransportError and DeadlineError.
        """
        if not all_have_same(self._communicator, zlib.crc32(gradient.encode())):
            raise InputError(f"ranks reduce different gradients; here it is that of {gradient}")

    def reduce_scatter(self, matrix: ShardMatrix, gradient: Tensor, output: Tensor) -> None:
        """Write the average over the ranks of row `worker` to `output`.

        gradient: [matrix.size], output: [matrix.columns]; float32, float16 or bfloat16, contiguous, CPU, or CUDA, which
        is staged through the host. The gradient is used as scratch. What travels together with a gradient that is not
        finite on any rank (THC: a rotation block) becomes NaN. Raises InputError for other tensors, TransportError and
        DeadlineError.
        """
        if self._error is not None:
            raise TransportError(f"the engine has ended: {self._error}") from self._error
        if matrix.rows != self.workers or gradient.numel() != matrix.size or output.numel() != matrix.columns:
            raise InputError(
                f"matrix {matrix.key!r} of {matrix.rows} x {matrix.columns} does not fit {self.workers} ranks, "
                f"a gradient of {gradient.numel()} and an output of {output.numel()} elements"
            )
        for tensor in (gradient, output):
            if tensor.dtype not in _DTYPES or not tensor.is_contiguous():
                raise InputError(f"gradient is {tensor.dtype}; float32, float16 or bfloat16, contiguous, is needed")
        try:
            staged = torch.empty_like(output, device="cpu") if output.is_cuda else output
            self._reduce(matrix, gradient.cpu(), staged)
            if staged is not output:
                output.copy_(staged)
        except ThcError as error:
            self._error = error
            raise

    def protect_step(self) -> None:
        """Begin a step that may be skipped; see Engine.protect_step().

        Averages of other ranks' rows that leave the range of float16 go unnoticed here: see restore_residuals().
        """
        self._state.rollback.begin()

    def restore_residuals(self) -> None:
        """Bring the residuals back to what they were at protect_step(): the step was skipped."""
        self._state.rollback.restore()

    def scale_residuals(self, factor: float) -> None:
        """Multiply all residuals: gradients come in another unit from now on (GradScaler changed its scale)."""
        self._state.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's checkpoint needs, copied; call it between steps. As Engine.state_dict()."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same rank and settings; ConfigurationError when it does not fit."""
        self._state.load_state_dict(state)

    def statistics(self) -> CompressionStats:
        """Return what compression did and what it cost. Once a step, that takes a pass over the residuals."""
        return self._state.statistics()

    def count_uncompressed(self, elements: int, element_bytes: int) -> None:
        """Count a gradient that was reduced without this engine."""
        self._recorder.add_gradient(uncompressed=elements)
        self._recorder.add_collective(elements * element_bytes, self.workers)

    def close(self) -> None:
        """Let later calls fail. May be called again."""
        self._error = self._error or TransportError("the engine was closed")

    @abstractmethod
    def _reduce(self, matrix: ShardMatrix, gradient: Tensor, output: Tensor) -> None:
        """As reduce_scatter(), for host tensors that fit."""

    def _start_exact(self, matrix: ShardMatrix, gradient: Tensor) -> tuple[ExactColumns, Waitable | None]:
        """Start summing the columns that travel uncompressed, if any."""
        exact = ExactColumns(matrix, gradient)
        return exact, self._communicator.sum_(exact.sums) if matrix.exact else None

    def _finish_exact(self, exact: ExactColumns, exact_sum: Waitable | None, output: Tensor) -> None:
        """Write their average to `output`."""
        if exact_sum is not None:
            exact_sum.wait()
            if not exact.sums.isfinite().all():
                self._state.rollback.request()
            exact.write_average(output, self.worker, self.workers)
        self._recorder.add_gradient(uncompressed=exact.sums.numel())
        self._recorder.add_collective(2 * exact.sums.nbytes, self.workers)
