"""The engine among workers with equal roles. hierarchy/engine.py wraps it for several GPUs in a node.

It admits gradients, and keeps the state between steps. factory.py makes engines.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc._base.errors import InputError, ThcError, TransportError
from byteps_thc._engine.agreement import Contents, Questions, how_it_travels
from byteps_thc._engine.engine import Engine, GradientBuffer, ShardMatrix
from byteps_thc._engine.engine_state import EngineState
from byteps_thc._engine.exact import Question
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.in_flight import InFlight, Layouts, kind_of, require_not_captured
from byteps_thc._engine.layout import Layout, check_rows
from byteps_thc._engine.parameters import real_parts
from byteps_thc._engine.piece import Pieces
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import State, StateDict
from byteps_thc._engine.stages import Reduction, Stages, StageThreads, StreamDriver, stage_threads
from byteps_thc._engine.staging import SideStream, make_staging
from byteps_thc._engine.statistics import CompressionStats, WorkClock
from byteps_thc._net.ending import Ending
from byteps_thc._net.watch import Watch

_UPLOADS_S = 2.0  # at the end, for copies from memory that ends with the engine


class FlatEngine(Engine):
    """Averages gradients over workers, as a whole or each its own row.

    stream: of the kernels. pieces_of: returns the pieces of a new layout; None: gradients are their own averages.
    in_stream: the calling thread puts all work on the stream and waits for nothing; else a thread for each stage does.
    fingerprints: of the pieces. questions: about gradients without fingerprints. clock: of the stages; time in which
    gradients are in flight and no stage works counts as communicate_ms. hang_up: wakes threads that wait for the
    network, so that they end. watch: for collectives on a device. leave: ends the communicators; called once nothing of
    this engine uses them.
    """

    def __init__(
        self,
        policy: CompressionPolicy,
        stream: SideStream,
        state: EngineState,
        pieces_of: Callable[[Layout], Pieces | None],
        *,
        in_stream: bool,
        fingerprints: Fingerprints,
        questions: Questions,
        clock: WorkClock | None = None,
        hang_up: Callable[[], None] = lambda: None,
        watch: Watch | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        self.workers, self.worker = state.workers, state.worker
        self.policy, self.recorder, self.device = policy, state.recorder, stream.device
        self.in_stream = in_stream
        self._stream, self._state, self._pieces_of = stream, state, pieces_of
        self._fingerprints, self._questions = fingerprints, questions
        self._without_layout: set[tuple[Contents, torch.dtype]] = set()
        self._clock, self._watch = clock or WorkClock(), watch
        self.compressing = self._compresses()
        self._ended: InputError | None = None
        self._in_flight = InFlight(self._clock.buffers)
        self._layouts: Layouts[Layout] = Layouts(self._in_flight, moving=self._wait_for_uploads)
        drive = StreamDriver if in_stream else stage_threads
        self._driver: StreamDriver | StageThreads
        self._driver = drive(Stages(self._in_flight.finish), stream, self._in_flight.fail)
        if watch is not None:
            watch.start(partial(_end_early, self._in_flight, questions))
        end = partial(end_engine, self._watch, self._driver, self._in_flight, hang_up, leave, stream)
        self._ending = Ending(self, end, at_exit=not in_stream)

    @override
    def start_step(self) -> None:
        """Begin a step. Raises InputError if ranks have averaged different gradients; on a device it may come later."""
        with self._stream.behind_current():
            self._end_on(self._questions.look())
        self._state.start_step()
        self.compressing = self._compresses()
        self._clock.take_idle_ms()

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        require_not_captured(buffer.gradient)
        self._require_same_order()
        self._in_flight.require_free(buffer.key)
        buffer = real_parts(buffer)
        gradient = buffer.gradient
        future = _future(gradient)
        layout = self._layout_of(buffer)
        if layout.pieces is None:
            self._state.recorder.add_gradient(uncompressed=layout.size)
            future.set_result(gradient)
            return future
        compress = self.compressing and not layout.all_exact
        self._begin_layout(buffer.key, gradient, gradient, layout, compress, future)
        return future

    def reduce_scatter(self, label: str, matrix: ShardMatrix, gradient: Tensor, output: Tensor) -> Reduction:
        """Start writing the average over the ranks of row `worker` to `output`.

        label: describes the gradient. If ranks pass different labels, parameters or loss scales, all get InputError,
        which names each rank's gradient. gradient: [matrix.size], output: [matrix.columns]; float32, float16 or
        bfloat16, contiguous; on the engine's device, or CUDA, which is staged through the host and done on return. The
        gradient is used as scratch. If it is not finite on any rank, everything that travels with the value (THC: a
        block of 64) becomes NaN. Raises InputError for other tensors.
        """
        require_not_captured(gradient)
        self._require_same_order()
        check_rows(matrix, self.workers, gradient, output)
        if self.in_stream and output.device != self.device:
            raise InputError(f"gradient is on {output.device}, not on {self.device}: move the model to {self.device}")
        staged = output.device != self.device
        result = torch.empty_like(output, device=self.device) if staged else output
        layout = self._layout_of_rows(label, matrix, gradient.dtype)
        job = self._begin_layout(label, gradient.to(self.device), result, layout, True, _future(result))
        job.take_no_longer()
        if staged:
            output.copy_(job.wait())
        return job

    def require_same(self, label: str, matrix: ShardMatrix, dtype: torch.dtype, *, waits: bool) -> None:
        """Wait until a gradient that is reduced without this engine is known to be the next one on all ranks.

        Raises the errors of reduce_scatter(); on a device only if the call `waits`, otherwise with a later step. label,
        matrix: as there; the gradient may lack some of the parameters. dtype: the gradient's.
        """
        self._require_same_order()
        none, contents = torch.empty(0, dtype=dtype, device=self.device), Contents(label, matrix.parameters)
        if (contents, dtype) not in self._without_layout:
            self._ask_of_layout(contents, 0, how_it_travels(compress=False), str(dtype))
            self._without_layout.add((contents, dtype))
        else:
            self._note(contents, 0, how_it_travels(compress=False), str(dtype))
        pieces = [Question(self._questions, contents, 0, dtype, compress=False)]
        self._begin(Reduction(label, none, none, pieces, None, self._state.round, False, _future(none))).wait()
        if waits:
            with self._stream.behind_current():
                self._require_agreement()

    def count_uncompressed(self, elements: int, element_bytes: int) -> None:
        self._state.recorder.add_gradient(uncompressed=elements)
        self._state.recorder.add_collective(elements * element_bytes, self.workers)

    @override
    def use_loss_scale(self, scale: float) -> None:
        with self._between_steps("use_loss_scale"):
            self._questions.use_loss_scale(scale)
            self._fingerprints.use_loss_scale(scale)

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
        self.compressing = self._compresses()
        self._wait_for_uploads()
        self._layouts.clear()
        self._without_layout.clear()

    @override
    def statistics(self) -> CompressionStats:
        """Return statistics; waits for a device, where times are not measured. Raises the errors of state_dict()."""
        self._state.recorder.add_time("communicate_ms", self._clock.take_idle_ms())
        with self._stream.behind_current():
            self._require_agreement()
            return self._state.statistics()

    @override
    def close(self) -> None:
        self._ending.close()

    def fail(self, error: InputError) -> None:
        """End the engine, and collectives on a device that never finish, from any thread."""
        self._in_flight.fail(error)
        if self._watch is not None:
            self._watch.end(error)

    def _begin_layout(
        self, key: str, source: Tensor, gradient: Tensor, layout: Layout, compress: bool, future: Future[Tensor]
    ) -> Reduction:
        exact = layout.uncompressed if compress else layout.size
        self._state.recorder.add_gradient(compressed=layout.compressed if compress else 0, uncompressed=exact)
        assert layout.pieces is not None
        round = self._state.next_round()
        pieces = layout.pieces(compress)
        return self._begin(Reduction(key, source, gradient, pieces, layout.staging, round, compress, future))

    def _begin(self, job: Reduction) -> Reduction:
        self._in_flight.begin(job.key, job.future)
        if job.staging is not None:
            job.staging.begin(job.source)
        self._driver.submit(job)
        return job

    def _layout_of(self, buffer: GradientBuffer) -> Layout:
        kind = kind_of(buffer)
        known = self._layouts.known(buffer.key, kind)
        if known is not None:
            if self._watch is not None:
                how = how_it_travels(self.compressing and not known.all_exact)
                self._note(known.contents, known.size, how, str(known.dtype))
            return known
        with self._stream.behind_current(), torch.no_grad():  # as late as here: the stream waits for no gradient
            gradient, staging = buffer.gradient, None
            if not (self.in_stream and gradient.device == self.device):
                staging = make_staging(gradient, self._stream, self._state.recorder)
            layout = Layout.of_buffer(buffer, self.policy, staging)
            compress = self.compressing and not layout.all_exact
            return self._prepared(kind, layout, compress=compress)

    def _layout_of_rows(self, label: str, matrix: ShardMatrix, dtype: torch.dtype) -> Layout:
        kind = label, matrix, dtype
        known = self._layouts.known(matrix.key, kind)
        if known is not None:
            self._note(known.contents, known.size, how_it_travels(compress=True), str(dtype))
            return known
        with self._stream.behind_current(), torch.no_grad():
            return self._prepared(kind, Layout.of_matrix(label, matrix, dtype), compress=True)

    def _prepared(self, kind: object, layout: Layout, *, compress: bool) -> Layout:
        rows = (f"{part.name!r} in rows of {part.row}" for part in layout.parameters if part.row)
        self._ask_of_layout(layout.contents, layout.size, how_it_travels(compress), str(layout.dtype), *rows)
        self._layouts.make_room(layout.key, layout.names)
        layout.pieces = self._pieces_of(layout) if layout.size else None
        self._layouts.add(layout, layout.key, layout.names, kind)
        return layout

    def _ask_of_layout(self, contents: Contents, size: int, *facts: str) -> None:
        """End the engine, on all ranks, unless all begin with the same layout; wait for them."""
        number, step = self._state.round, self._state.step
        self._note(contents, size, *facts, "for the first time")
        try:
            self._questions.require_same_layout(contents, size, number, f"round {number}", f"step {step}", *facts)
        except ThcError as error:
            self._in_flight.fail(error)
            raise

    def _require_same_order(self) -> None:
        if self._watch is not None:
            self._watch.require_same()

    def _note(self, contents: Contents, size: int, *facts: str) -> None:
        if self._watch is not None:
            self._watch.began(", ".join([contents.label, f"{size} elements", *facts]))

    def _compresses(self) -> bool:
        return self.policy.compresses(self._state.step)

    def _wait_for_uploads(self) -> None:
        """Call before layouts and their pinned memory go: the stream may still be copying from it."""
        if not self.in_stream:
            self._stream.wait()

    @contextmanager
    def _between_steps(self, call: str) -> Iterator[None]:
        self._in_flight.require_idle(call)
        with self._stream.behind_current():
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


def _end_early(in_flight: InFlight, questions: Questions, error: InputError) -> None:
    in_flight.fail(error)
    questions.spoil(error)


def end_engine(
    watch: Watch | None,
    driver: StreamDriver | StageThreads | None,
    in_flight: InFlight,
    hang_up: Callable[[], None],
    leave: Callable[[], None] | None,
    stream: SideStream | None = None,
) -> None:
    """End an engine. driver: None: its work is on streams alone. stream: has uploads. Others: see FlatEngine."""
    if watch is not None:
        watch.close()
    if driver is not None:
        driver.end()
    in_flight.fail(TransportError("the engine was closed"))
    try:
        hang_up()
        if driver is not None:
            driver.join()
        if stream is not None:
            stream.wait_at_most(_UPLOADS_S)
    finally:  # also after an error of CUDA's
        if leave is not None:
            leave()


def _future(gradient: Tensor) -> Future[Tensor]:
    return Future(devices=[gradient.device] if gradient.is_cuda else None)
