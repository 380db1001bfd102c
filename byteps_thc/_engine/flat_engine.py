"""The engine among workers with equal roles. hierarchy/engine.py wraps it for several GPUs in a node.

Gradients are encoded and decoded piece by piece (layout.py), in stages (stages.py), which a driver calls (drivers.py).
This module admits gradients and keeps the state between steps. factory.py makes engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc._engine.agreement import Contents, Questions, how_it_travels
from byteps_thc._engine.drivers import StageThreads, StreamDriver, stage_threads
from byteps_thc._engine.engine import Engine, GradientBuffer, ShardMatrix
from byteps_thc._engine.engine_state import EngineState
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.in_flight import InFlight, Layouts, kind_of, require_not_captured
from byteps_thc._engine.layout import Layout, Round, check_rows
from byteps_thc._engine.parameters import real_parts
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import State, StateDict
from byteps_thc._engine.stages import Reduction, Stages
from byteps_thc._engine.staging import SideStream, Staging
from byteps_thc._engine.statistics import CompressionStats, StatsRecorder, WorkClock
from byteps_thc._net.communicator import ExactSum
from byteps_thc._net.ending import Ending
from byteps_thc._scheme.errors import InputError, ThcError, TransportError

_UPLOADS_S = 2.0  # at the end, for copies from memory that ends with the engine


@dataclass(frozen=True)
class Place:
    """The place where an engine works.

    device: of the kernels, whose work is put on `stream`. in_stream: the calling thread puts it there and waits for
    nothing; else a thread for each stage does. staging: brings gradients there; None: they are there.
    """

    device: torch.device
    stream: SideStream
    in_stream: bool
    staging: Callable[[Tensor], Staging | None]


class FlatEngine(Engine):
    """Averages gradients over workers, as a whole or each its own row.

    prepare: sets the pieces of a new layout, and its residual; raises ConfigurationError if a residual does not fit.
    fingerprints: of the pieces. exact: sums uncompressed tensors in `place`. questions: about gradients without
    fingerprints. alone: there are no other workers. clock: of the stages; time in which gradients are in flight and no
    stage works counts as communicate_ms. hang_up: wakes threads that wait for the network, so that they end. leave:
    ends the communicators; called once nothing of this engine uses them.
    """

    def __init__(
        self,
        policy: CompressionPolicy,
        place: Place,
        state: EngineState,
        prepare: Callable[[Layout], None],
        *,
        fingerprints: Fingerprints,
        exact: ExactSum,
        questions: Questions,
        alone: bool = False,
        clock: WorkClock | None = None,
        hang_up: Callable[[], None] = lambda: None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        self.workers, self.worker = state.workers, state.worker
        self.policy = policy
        self._place, self._state, self._prepare = place, state, prepare
        self._fingerprints, self._questions, self._alone = fingerprints, questions, alone
        self._without_layout: set[tuple[Contents, torch.dtype]] = set()
        self._clock = clock or WorkClock()
        self._compressing = self._compresses()
        self._ended: InputError | None = None
        self._in_flight = InFlight(self._clock.buffers)
        self._layouts: Layouts[Layout] = Layouts(self._in_flight, moving=self._moving)
        stages = Stages(
            state.recorder,
            state.rollback,
            worker=self.worker,
            workers=self.workers,
            device=place.device,
            exact=exact,
            questions=questions,
            finish=self._in_flight.finish,
        )
        drive = StreamDriver if place.in_stream else stage_threads
        self._driver: StreamDriver | StageThreads = drive(stages, place.stream, self._in_flight.fail)
        end = partial(_end, self._driver, self._in_flight, hang_up, place.stream, leave)
        self._ending = Ending(self, end, at_exit=not place.in_stream)

    @property
    def device(self) -> torch.device:
        return self._place.device

    @property
    def in_stream(self) -> bool:
        """Whether all_reduce() returns with the work on a stream of that device, and nobody waits."""
        return self._place.in_stream

    @property
    def recorder(self) -> StatsRecorder:
        return self._state.recorder

    @property
    def compressing(self) -> bool:
        return self._compressing

    @override
    def start_step(self) -> None:
        """Begin a step. Raises InputError if ranks have averaged different gradients; on a device it may come later."""
        with self._place.stream.behind_current():
            self._end_on(self._questions.look())
        self._state.start_step()
        self._compressing = self._compresses()
        self._clock.take_idle_ms()

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        require_not_captured(buffer.gradient)
        self._in_flight.require_free(buffer.key)
        buffer = real_parts(buffer)
        gradient = buffer.gradient
        future = _future(gradient)
        layout = self._layout_of(buffer)
        if self._alone or layout.size == 0:
            self._state.recorder.add_gradient(uncompressed=layout.size)
            future.set_result(gradient)
            return future
        compress = self._compressing and not layout.all_exact
        self._begin(buffer.key, layout.contents, gradient, gradient, layout, compress, future)
        return future

    def reduce_scatter(self, label: str, matrix: ShardMatrix, gradient: Tensor, output: Tensor) -> Reduction:
        """Start writing the average over the ranks of row `worker` to `output`.

        label: describes the gradient. If ranks pass different labels, parameters or loss scales, all get InputError,
        which names each rank's gradient; otherwise they would wait until the deadline, or sum gradients of different
        parameters. gradient: [matrix.size], output: [matrix.columns]; float32, float16 or bfloat16, contiguous; on the
        engine's device, or CUDA, which is staged through the host and done on return. The gradient is used as scratch.
        If it is not finite on any rank, everything that travels with the value (THC: a block of 64) becomes NaN.
        Raises InputError for other tensors.
        """
        require_not_captured(gradient)
        check_rows(matrix, self.workers, gradient, output)
        if self.in_stream and output.device != self.device:
            raise InputError(f"gradient is on {output.device}, not on {self.device}: move the model to {self.device}")
        staged = output.device != self.device
        result = torch.empty_like(output, device=self.device) if staged else output
        contents = Contents(label, matrix.parameters)
        layout = self._layout_of_rows(matrix, gradient.dtype, contents)
        job = self._begin(label, contents, gradient.to(self.device), result, layout, True, _future(result))
        job.take_no_longer()
        if staged:
            output.copy_(job.wait())
        return job

    def require_same(self, label: str, matrix: ShardMatrix, dtype: torch.dtype) -> None:
        """Wait until a gradient that is reduced without this engine is known to be the next one on all ranks.

        Raises the errors of reduce_scatter(); on a device nothing waits, and the error comes with the next step. label,
        matrix: as there; the gradient may lack some of the parameters. dtype: the gradient's.
        """
        none, contents = torch.empty(0, dtype=dtype, device=self.device), Contents(label, matrix.parameters)
        if (contents, dtype) not in self._without_layout:
            self._ask_of_layout(contents, 0, how_it_travels(compress=False), str(dtype))
            self._without_layout.add((contents, dtype))
        self._begin(label, contents, none, none, None, False, _future(none)).wait()

    def count_uncompressed(self, elements: int, element_bytes: int) -> None:
        self._state.recorder.add_gradient(uncompressed=elements)
        self._state.recorder.add_collective(elements * element_bytes, self.workers)

    @override
    def protect_step(self) -> None:
        with self._between_steps("protect_step"):
            self._state.rollback.begin()

    @override
    def restore_residuals(self) -> None:
        with self._between_steps("restore_residuals"):
            self._state.rollback.restore()

    @override
    def use_loss_scale(self, scale: float) -> None:
        with self._between_steps("use_loss_scale"):
            self._questions.use_loss_scale(scale)
            self._fingerprints.use_loss_scale(scale)

    @override
    def scale_residuals(self, factor: float) -> None:
        with self._between_steps("scale_residuals"):
            self._state.scale(factor)

    @override
    def state_dict(self) -> StateDict:
        """Return the state; waits for a device. Raises InputError, once, if ranks averaged different gradients."""
        with self._between_steps("state_dict"):
            self._require_agreement()
            return self._state.state_dict()

    @override
    def load_state_dict(self, state: State) -> None:
        with self._between_steps("load_state_dict"):
            self._state.load_state_dict(state)
        self._compressing = self._compresses()
        self._wait_for_uploads()
        self._layouts.clear()
        self._without_layout.clear()

    @override
    def statistics(self) -> CompressionStats:
        """Return statistics; waits for a device, where times are not measured. Raises the errors of state_dict()."""
        self._state.recorder.add_time("communicate_ms", self._clock.take_idle_ms())
        with self._place.stream.behind_current():
            self._require_agreement()
            return self._state.statistics()

    @override
    def close(self) -> None:
        self._ending.close()

    def _begin(
        self,
        key: str,
        contents: Contents,
        source: Tensor,
        gradient: Tensor,
        layout: Layout | None,
        compress: bool,
        future: Future[Tensor],
    ) -> Reduction:
        number = self._state.round if layout is None else self._state.next_round()
        round = Round(number, compress)
        job = Reduction(key, contents, gradient, source, layout, round, future, staged=source, out=gradient)
        self._in_flight.begin(key, job.future)
        if layout is not None and layout.staging is not None:
            layout.staging.begin(source)
        self._driver.submit(job)
        return job

    def _layout_of(self, buffer: GradientBuffer) -> Layout:
        kind = kind_of(buffer)
        known = self._layouts.known(buffer.key, kind)
        if known is not None:
            return known
        with self._place.stream.behind_current(), torch.no_grad():  # as late as here: the stream waits for no gradient
            staging = self._place.staging(buffer.gradient)
            layout = Layout.of_buffer(buffer, self.policy, self.device, staging)
            compress = self._compressing and not layout.all_exact
            return self._prepared(kind, layout, layout.contents, compress=compress)

    def _layout_of_rows(self, matrix: ShardMatrix, dtype: torch.dtype, contents: Contents) -> Layout:
        kind = matrix, dtype
        known = self._layouts.known(matrix.key, kind)
        if known is not None:
            return known
        with self._place.stream.behind_current(), torch.no_grad():
            return self._prepared(kind, Layout.of_matrix(matrix, dtype, self.device), contents, compress=True)

    def _prepared(self, kind: object, layout: Layout, contents: Contents, *, compress: bool) -> Layout:
        rows = (f"{part.name!r} in rows of {part.row}" for part in layout.parameters if part.row)
        self._ask_of_layout(contents, layout.size, how_it_travels(compress), str(layout.dtype), *rows)
        self._layouts.make_room(layout, layout.key, layout.names)
        if not self._alone or layout.extent.sharded:
            self._prepare(layout)
        self._layouts.add(layout, layout.key, layout.names, kind)
        return layout

    def _ask_of_layout(self, contents: Contents, size: int, *facts: str) -> None:
        """End the engine, on all ranks, unless all begin with the same layout; wait for them."""
        if self._alone:
            return
        number, step = self._state.round, self._state.step
        try:
            self._questions.require_same_layout(contents, size, number, f"round {number}", f"step {step}", *facts)
        except ThcError as error:
            self._in_flight.fail(error)
            raise

    def _compresses(self) -> bool:
        return self.policy.compresses(self._state.step)

    def _moving(self, layout: Layout) -> None:
        self._wait_for_uploads()
        if layout.extent.sharded:  # frozen parameters change between steps, and other groups are in flight by now
            self._state.rollback.forget_unsaved()
        else:  # rare, within a protected step: its remainder is protected in the new place
            self._state.rollback.release()

    def _wait_for_uploads(self) -> None:
        """Call before layouts and their pinned memory go: the stream may still be copying from it."""
        if not self._place.in_stream:
            self._place.stream.wait()

    @contextmanager
    def _between_steps(self, call: str) -> Iterator[None]:
        self._in_flight.require_idle(call)
        with self._place.stream.behind_current():
            yield

    def _require_agreement(self) -> None:
        # An engine that has ended can be inspected: it has the residuals from before.
        if self._ended is None:
            self._end_on(self._questions.wait())

    def _end_on(self, error: InputError | None) -> None:
        self._ended = self._ended or error
        if error is not None:
            self._in_flight.fail(error)
            raise error


def _end(
    driver: StreamDriver | StageThreads,
    in_flight: InFlight,
    hang_up: Callable[[], None],
    stream: SideStream,
    leave: Callable[[], None] | None,
) -> None:
    driver.end()
    in_flight.fail(TransportError("the engine was closed"))
    hang_up()
    driver.join()
    try:
        stream.wait_at_most(_UPLOADS_S)
    finally:  # also after an error of CUDA's
        if leave is not None:
            leave()


def _future(gradient: Tensor) -> Future[Tensor]:
    return Future(devices=[gradient.device] if gradient.is_cuda else None)
