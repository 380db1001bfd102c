"""The interface between plug-ins and engines."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor
from torch.futures import Future

from byteps_thc._engine.saved_state import State, StateDict
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._scheme.block_plan import RowSpan


class Engine(Protocol):
    """Averages gradient buffers over the ranks of a group, asynchronously, in order of submission.

    All ranks must submit the same layouts in the same order. An error (a rank died, a wait took longer than
    policy.deadline_s, ranks compress different gradients) ends the engine: it reaches every future in flight and every
    later call.
    """

    workers: int
    worker: int  # this rank, within the group

    def start_step(self) -> None:
        """Begin an optimizer step; called once, before its first buffer."""

    def all_reduce(self, buffer: "GradientBuffer") -> Future[Tensor]:
        """Start averaging; the average is written in place into buffer.gradient, the value of the future.

        Nobody may touch the gradient until the future is done. Raises InputError for an unsupported buffer, and the
        engine's error once it has ended.
        """

    def protect_step(self) -> None:
        """Begin a step that may be skipped; before its first start_step(). Only engines with residuals do anything.

        If an average of the step is not finite, the next call, state_dict() or scale_residuals() restores all
        residuals, bit for bit. Costs a copy of the residuals per step. Without this call, only the gradient that is not
        finite, and gradients that travel with it, leave no residual.
        """
        return

    def restore_residuals(self) -> None:
        """Restore the residuals of protect_step(): the step was skipped."""
        return

    def use_loss_scale(self, scale: float) -> None:  # noqa: ARG002  engines that compare it override this
        """Note the factor of later gradients; 1 before the first call.

        It is compared with every gradient: ranks with different scales all get InputError.
        """
        return

    def scale_residuals(self, factor: float) -> None:  # noqa: ARG002  engines with residuals override this
        """Multiply all residuals: GradScaler changed its scale."""
        return

    def state_dict(self) -> StateDict:
        """Return a copy of this rank's state for a checkpoint; call it between steps.

        {"version", "worker", "workers", "config", "round", "step"}, and "residuals": {parameter name: 1-D tensor} with
        servers.
        """

    def load_state_dict(self, state: State) -> None:
        """Load a state_dict() of the same rank and settings.

        Raises ConfigurationError, with nothing changed, if it does not fit or is damaged. Residuals of parameters that
        the engine has not seen yet are checked with their first gradient: that call raises, and the engine stays
        usable.
        """

    def statistics(self) -> CompressionStats:
        """Return the effects and costs of compression."""

    def close(self) -> None:
        """End the threads; gradients in flight fail. May be called again."""
        return


@dataclass(frozen=True)
class ParameterSlice:
    """The place of a parameter's gradient in a buffer.

    name: the same on all ranks and in all runs; key of the residual. start, stop: elements of the buffer. row: elements
    of each row with its own scale; 0: no scales. skipped: elements of the first row that are not in the buffer.
    """

    name: str
    start: int
    stop: int
    row: int = 0
    skipped: int = 0

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def row_span(self) -> RowSpan | None:
        return RowSpan(self.start, self.stop, self.row, self.skipped) if self.row and self.size else None


@dataclass(frozen=True)
class GradientBuffer:
    """Gradients of several parameters in one tensor, such as a bucket of DDP.

    key: identifies the layout on all ranks. gradient: 1-D, contiguous; float32, float16 or bfloat16, or float64 if all
    parameters travel exactly (CompressionPolicy); CPU or CUDA. parameters: ascending and disjoint; gaps are padding.
    drops_unused: the caller drops averages of parameters whose gradients are zero on all ranks; default: it keeps them.
    """

    key: str
    gradient: Tensor
    parameters: tuple[ParameterSlice, ...]
    drops_unused: bool = False


@dataclass(frozen=True)
class ShardMatrix:
    """The input of a reduce-scatter: a row for every rank, which gets the average of that row.

    Parameters lie in gradients of `rows` rows of `columns` elements, row by row in one flat tensor.

    key: the same on all ranks; identifies the places of the parameters. compressed: ascending and disjoint; a sharded
    parameter has a slice in every row. exact: columns (start, stop) that travel uncompressed. All else is padding.
    parameters: a line for each, in their order; the same on all ranks.
    """

    key: str
    rows: int
    columns: int
    compressed: tuple[ParameterSlice, ...]
    exact: tuple[tuple[int, int], ...] = ()
    parameters: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def exact_columns(self) -> int:
        return sum(stop - start for start, stop in self.exact)

    @cached_property
    def gaps(self) -> tuple[slice, ...]:
        starts = [0, *(part.stop for part in self.compressed)]
        stops = [*(part.start for part in self.compressed), self.size]
        return tuple(slice(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop)
