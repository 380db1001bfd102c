"""Averages of workers without a process group: the engine's stages over a Session, in the caller's thread.

    averager = GradientAverager(session, compressor)
    averager.average({"layer1.weight": gradient})          # in place

While a partition's norms or codes travel, others are encoded and decoded.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from byteps_thc._base.arrays import Gradient, gradient_view, require_disjoint, residual_of_tensor
from byteps_thc._base.errors import ConfigurationError, InputError, TransportError
from byteps_thc._engine.adding.feedback import Feedback, GrowthGuard, server_pieces
from byteps_thc._engine.adding.residuals import AddingState
from byteps_thc._engine.adding.server_piece import ServerPiece, ServerTools
from byteps_thc._engine.engine import ParameterSlice
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.layout import Extent
from byteps_thc._engine.saved_state import State, StateDict, require_sound
from byteps_thc._engine.statistics import CompressionStats, WorkClock
from byteps_thc._net.servers import ServersTransport
from byteps_thc._net.session import Session
from byteps_thc._scheme.adding.compressor import Compressor
from byteps_thc._scheme.block_plan import BlockPlan, RowSpan

Array = Tensor | npt.NDArray[np.generic]
#: Pieces by which a stage is ahead of the next one, to hide the round trips of norms and codes.
_LOOKAHEAD = 2


@dataclass(frozen=True)
class _NamedGradient:
    size: int
    pieces: list[ServerPiece]


class GradientAverager:
    """Average named gradients over the workers of a session.

    session: an open Session of this worker.
    compressor: a Compressor of the same worker and configuration.
    rows: names of gradients whose rows have a scale each, such as embeddings; default: none. A row is the part behind
        one index of the first dimension. A row that is zero on all workers stays zero.

    All workers average the same names and sizes in the same order, with the same rows. Only one thread may use an
    averager at a time. byteps_thc.checkpoint saves and loads the state.

    Raises ConfigurationError if session and compressor differ.
    """

    def __init__(self, session: Session, compressor: Compressor, rows: Sequence[str] = ()) -> None:
        for setting in ("codes", "worker", "workers"):
            ours, theirs = getattr(compressor, setting), getattr(session, setting)
            if ours != theirs:
                raise ConfigurationError(f"compressor and session must have the same {setting}: {ours} and {theirs}")
        self._state = AddingState(compressor.worker, compressor.workers, compressor.codes.model_dump())
        recorder, self._residuals, self._guard = self._state.recorder, self._state.residuals, GrowthGuard()
        self._tools = ServerTools(
            compressor,
            ServersTransport(session, recorder),
            recorder,
            Fingerprints(compressor.resolved.identity, compressor.worker),
            WorkClock(),
        )
        self._gradients: dict[str, _NamedGradient] = {}
        self._rows = frozenset(rows)
        self._interrupted = False

    @property
    def step(self) -> int:
        """Number of average() calls, including the calls before a checkpoint."""
        return self._state.steps

    @property
    def parameter_sizes(self) -> dict[str, int] | None:
        """Elements of every gradient, by name; None before the first average()."""
        return {name: gradient.size for name, gradient in self._gradients.items()} or None

    def average(self, gradients: Mapping[str, Array], out: Mapping[str, Array] | None = None) -> None:
        """Write the average over the workers of every gradient to `out`.

        gradients: by name, float32 or float16 NumPy arrays, or torch CPU tensors, also bfloat16; C-contiguous, any
            shape. The size of a name never changes, and arrays of different names share no memory.
        out: by name, arrays as in gradients; default: gradients, in place.

        Raises InputError, before the first packet leaves, for unsupported arrays, and ConfigurationError if a loaded
        residual has another size than its gradient. The session stays usable after both. Raises InputError on all
        workers if they average different gradients, and DeadlineError, RestartError or TransportError as Session does.
        After these errors, and after KeyboardInterrupt, the session is over.
        """
        if self._interrupted:
            raise TransportError(
                "an earlier average() was interrupted: close the session and join again on all workers"
            )
        views = self._views(gradients, gradients if out is None else out)
        named = [
            (self._gradient(name, source.numel(), gradients[name].shape), source, target)
            for name, (source, target) in views.items()
        ]
        self._state.start_step()
        self._state.recorder.add_gradient(compressed=sum(source.numel() for _, source, _ in named))
        self._interrupted = True
        self._run_in_turn(named, self._state.next_round())
        self._interrupted = False

    def statistics(self) -> CompressionStats:
        """Return statistics of compression. The first call after a step reads all residuals."""
        return self._state.statistics()

    def state_dict(self) -> StateDict:
        """Return a copy of this worker's state for a checkpoint: counters, settings, and residuals by gradient name.

        {"version", "worker", "workers", "config", "round", "step", "residuals": {name: float32[elements]}}.
        """
        state = self._state.state_dict()
        return state | {"residuals": {name: residual_of_tensor(own) for name, own in state["residuals"].items()}}

    def load_state_dict(self, state: State) -> None:
        """Load a state_dict() of the same worker and settings.

        state: a mapping; its residuals are arrays or torch tensors.

        Raises ConfigurationError if the state does not fit or is damaged; the averager is then unchanged.
        """
        require_sound(state, self.parameter_sizes, complete=False)
        self._state.load_state_dict(state)
        self._gradients.clear()  # their pieces write the residuals of before

    def _views(self, gradients: Mapping[str, Array], out: Mapping[str, Array]) -> dict[str, tuple[Tensor, Tensor]]:
        views = {}
        for name, gradient in gradients.items():
            if name not in out:
                raise InputError(f"out has no array for gradient {name!r}: pass one of its size, or omit out")
            source = gradient_view(gradient, name=repr(name))
            target = gradient_view(out[name], name=f"out[{name!r}]")
            if source.size != target.size or not target.flags.writeable:
                raise InputError(f"out[{name!r}] must be a writable array of {source.size} elements")
            known = self._gradients.get(name)
            if known is not None and known.size != source.size:
                raise InputError(
                    f"gradient {name!r} had {known.size} elements before and has {source.size} now: keep sizes, or use "
                    "another name"
                )
            views[name] = _tensor(source, gradient), _tensor(target, out[name])
        require_disjoint(
            (name, view.data_ptr(), view.nbytes) for name, pair in views.items() for view in pair if view.numel()
        )
        return views

    def _run_in_turn(self, named: list[tuple[_NamedGradient, Tensor, Tensor]], round: int) -> None:
        """Take all pieces through a round; time spent only waiting for the network counts as communicate_ms.

        The order of the stages is the same on all workers.
        """
        measured: deque[tuple[ServerPiece, Tensor]] = deque()
        encoded: deque[tuple[ServerPiece, Tensor]] = deque()
        clock = self._tools.clock
        clock.buffers(+1)
        try:
            for gradient, source, target in named:
                for piece in gradient.pieces:
                    piece.measure(source, round)
                    measured.append((piece, target))
                    _go_on(measured, encoded, _LOOKAHEAD)
            while measured or encoded:
                _go_on(measured, encoded, 0)
        finally:
            clock.buffers(-1)
            self._state.recorder.add_time("communicate_ms", clock.take_idle_ms())

    def _gradient(self, name: str, size: int, shape: Sequence[int]) -> _NamedGradient:
        known = self._gradients.get(name)
        if known is None:
            feedback = None
            if self._tools.compressor.resolved.error_feedback:
                residual = self._residuals.of(size, [ParameterSlice(name, 0, size)])
                feedback = Feedback(residual, self._residuals.rollback, self._guard)
            width = math.prod(shape[1:]) if name in self._rows else 0
            plan = BlockPlan((), (RowSpan(0, size, width),) if width and size else ())
            extent = Extent(name, 1, size, sharded=False, label=repr(name), layout=str(plan), plan=plan)
            known = self._gradients[name] = _NamedGradient(size, server_pieces(self._tools, extent, feedback))
        return known


def _tensor(view: Gradient, source: Array) -> Tensor:
    """Return a flat tensor with the same memory, unless the view is read-only."""
    if isinstance(source, Tensor):
        return source.detach().view(-1)
    return torch.from_numpy(view if view.flags.writeable else view.copy())


def _go_on(measured: deque[tuple[ServerPiece, Tensor]], encoded: deque[tuple[ServerPiece, Tensor]], ahead: int) -> None:
    """Encode a piece that is more than `ahead` behind the last measured one; likewise decode one."""
    if len(measured) > ahead:
        measured[0][0].encode()
        encoded.append(measured.popleft())
    if len(encoded) > (_LOOKAHEAD if measured else 0):
        piece, out = encoded.popleft()
        piece.sum()
        piece.decode(out)
