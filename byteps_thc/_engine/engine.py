"""The interface between plug-ins and engines: what averages, and what is averaged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor
from torch.futures import Future

from byteps_thc._engine.saved_state import State, StateDict
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._scheme.block_plan import RowSpan


class Engine(Protocol):
    """Averages gradient buffers over the ranks of a group.

    They work asynchronously, in order of submission. All ranks must submit the same layouts in the same order. An error
    (a rank died, a wait took longer than policy.deadline_s, ranks compress different gradients) ends the engine: it
    reaches every future in flight and every later call.
    """

    workers: int
    """number of ranks"""
    worker: int
    """this rank, within the group"""

    def start_step(self) -> None:
        """Begin an optimizer step; called once, before its first buffer."""

    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        """Start averaging; the average is written in place into buffer.gradient, which is the future's value.

        Nobody may touch the gradient until the future is done. Raises InputError for a buffer that cannot be averaged,
        and the engine's error when it has ended.
        """

    def protect_step(self) -> None:
        """Begin a step that may be skipped; before its first start_step(). Only engines with residuals do anything.

        When an average of it is not finite, all residuals are brought back, bit for bit, to what they are now: by the
        next call, state_dict() or scale_residuals(). Costs a copy of the residuals per step. Without a call, only what
        travelled with the gradient that is not finite leaves no residual.
        """
        return

    def restore_residuals(self) -> None:
        """Bring the residuals back to what they were at protect_step(): the step was skipped."""
        return

    def use_loss_scale(self, scale: float) -> None:  # noqa: ARG002  engines that compare it override this
        """Gradients are multiplied by it from now on; 1 before the first call.

        It is compared with every gradient: one that comes with another scale on another rank is an InputError there as
        here.
        """
        return

    def scale_residuals(self, factor: float) -> None:  # noqa: ARG002  engines with residuals override this
        """Multiply all residuals: gradients come in another unit from now on (GradScaler changed its scale)."""
        return

    def state_dict(self) -> StateDict:
        """Return what this rank's checkpoint needs, copied; call it between steps.

        {"version", "worker", "workers", "config", "round", "step"}, and "residuals": {parameter name: 1-D tensor}
        with servers.
        """

    def load_state_dict(self, state: State) -> None:
        """Take over a state_dict() of the same rank and settings.

        ConfigurationError when it does not fit or is damaged; then nothing has changed. Whether residuals fit
        parameters that have not been here turns out when these come: that call raises ConfigurationError, and the
        engine goes on.
        """

    def statistics(self) -> CompressionStats:
        """Return what compression did and what it cost."""

    def close(self) -> None:
        """End the threads; what is in flight fails. May be called again."""
        return


@dataclass(frozen=True)
class ParameterSlice:
    """Where the gradient of a parameter lies in a buffer.

    name: the parameter's, the same on all ranks and in all runs; key of its residual. start, stop: elements of the
    buffer. row: elements of each row that has a scale of its own; 0: none has. skipped: elements of the first row that
    are not in the buffer.
    """

    name: str
    start: int
    stop: int
    row: int = 0
    skipped: int = 0

    @property
    def size(self) -> int:
        """Elements."""
        return self.stop - self.start

    @property
    def row_span(self) -> RowSpan | None:
        """Where the rows with scales are; None without any."""
        return RowSpan(self.start, self.stop, self.row, self.skipped) if self.row and self.size else None


@dataclass(frozen=True)
class GradientBuffer:
    """Gradients of several parameters in one tensor, such as a bucket of DDP.

    key: names the layout, the same on all ranks; another layout has another key. gradient: 1-D, contiguous; float32,
    float16 or bfloat16, or float64 where all parameters travel exactly (CompressionPolicy); CPU or CUDA.
    parameters: ascending and disjoint; gaps between them are padding. drops_unused: whether nobody gets the average of
    a parameter whose gradient is zero on all ranks, default: everybody does.
    """

    key: str
    gradient: Tensor
    parameters: tuple[ParameterSlice, ...]
    drops_unused: bool = False


@dataclass(frozen=True)
class ShardMatrix:
    """The input of a reduce-scatter: a row for every rank, which gets the average of that row.

    Parameters lie in gradients of `rows` rows of `columns` elements, row by row in one flat tensor.

    key: names it, the same on all ranks; other places of parameters have another key. compressed: parameters that are
    compressed, ascending and disjoint; one that is sharded has a slice in every row. exact: columns (start, stop) of
    parameters that travel uncompressed. All else is padding. parameters: all of them in their order, a line for each,
    which must be the same on all ranks.
    """

    key: str
    rows: int
    columns: int
    compressed: tuple[ParameterSlice, ...]
    exact: tuple[tuple[int, int], ...] = ()
    parameters: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Elements of the whole gradient."""
        return self.rows * self.columns

    @cached_property
    def gaps(self) -> tuple[slice, ...]:
        """Everything that is not compressed, in the flat gradient."""
        return tuple(self._between_parameters())

    def _between_parameters(self) -> Iterator[slice]:
        position = 0
        for part in self.compressed:
            if part.start > position:
                yield slice(position, part.start)
            position = part.stop
        if position < self.size:
            yield slice(position, self.size)
