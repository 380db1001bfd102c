"""The engine of a node whose processes average among themselves, around the engine that averages between the nodes:

    gradient -> [average within the node] -> inner engine -> [brought to all processes of the node]

The inner engine has the residuals and the figures.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc._base.errors import InputError
from byteps_thc._engine.agreement import contents_of
from byteps_thc._engine.engine import Engine, GradientBuffer
from byteps_thc._engine.flat_engine import FlatEngine, end_engine
from byteps_thc._engine.in_flight import InFlight, Layouts, kind_of, require_not_captured
from byteps_thc._engine.layout import check_buffer
from byteps_thc._engine.parameters import real_parts
from byteps_thc._engine.saved_state import State, StateDict
from byteps_thc._engine.stages import Stage, StageThreads
from byteps_thc._engine.staging import CopyStaging, SideStream, Staging
from byteps_thc._engine.statistics import CompressionStats, StatsRecorder
from byteps_thc._net.ending import Ending
from byteps_thc._net.watch import Watch


class NodeLayout:
    """Memory of an exchange for one layout. staging: None: gradients are in place. names: of their parameters."""

    def __init__(self, buffer: GradientBuffer, staging: Staging | None) -> None:
        self.key, self.names = buffer.key, frozenset(part.name for part in buffer.parameters)
        self.contents = contents_of(buffer.key, buffer.parameters)
        self.staging = staging


LayoutT = TypeVar("LayoutT", bound=NodeLayout)


class NodeExchange(Protocol[LayoutT]):
    """The communication of a node's processes among themselves; each method has one thread, and is called in order.

    size, rank: as NodeEngine.workers and worker. device: where gradients are exchanged. in_stream: calls return with
    the work on the current stream.
    """

    size: int
    rank: int
    device: torch.device
    in_stream: bool = False

    def layout(self, buffer: GradientBuffer, recorder: StatsRecorder) -> LayoutT:
        """Return the memory for such buffers. Raises InputError for an unsupported buffer."""

    def use_loss_scale(self, scale: float) -> None:  # noqa: ARG002  exchanges that compare it override this
        """Note the factor of later gradients."""
        return

    def scatter(self, layout: LayoutT, buffer: GradientBuffer, round: int, *, new: bool) -> GradientBuffer:
        """Average within the node; return the part that this process averages between the nodes.

        new: the buffer is the first one of its layout. Raises InputError on all ranks if they average different
        gradients and the inner engine cannot notice.
        """

    def gather(self, layout: LayoutT, gradient: Tensor) -> None:
        """Overwrite the gradient by its average, of which the inner engine has written this process's part."""


@dataclass
class _Job(Generic[LayoutT]):
    """A buffer on its way. host: its gradient where it is exchanged. steps: begun since the buffer before it."""

    buffer: GradientBuffer
    layout: LayoutT
    round: int
    new: bool
    future: Future[Tensor]
    steps: int
    host: Tensor
    averaged: Future[Tensor] | None = None


class NodeEngine(Engine, Generic[LayoutT]):
    """Averages within a node around `inner`, an engine that averages between the nodes.

    recorder: the inner engine's, which also counts copies of gradients. watch: of all ranks, for an exchange on a
    stream. leave: ends the exchange's communicators, after the inner engine. On a stream, the host only waits for the
    first buffer of a layout. If the host compresses, a thread waits for its averages. In host memory another thread
    brings buffers to the inner engine, so that work on different buffers overlaps.
    """

    def __init__(
        self,
        inner: Engine,
        exchange: NodeExchange[LayoutT],
        recorder: StatsRecorder,
        watch: Watch | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        self.workers, self.worker = exchange.size, exchange.rank
        self._inner, self._exchange = inner, exchange
        self._recorder, self._watch = recorder, watch
        self._in_flight = InFlight()
        self._fail = partial(_fail, self._watch, self._in_flight)
        self._stages = _Stages(inner, exchange, self._in_flight)
        self._layouts: Layouts[LayoutT] = Layouts(self._in_flight)
        self._round = 0
        self._begun = 0  # steps unknown to the inner engine: buffers of earlier ones are on their way
        self._streams: tuple[SideStream, SideStream] | None = None
        self._threads: StageThreads | None = None
        if exchange.in_stream:
            self._streams = SideStream(exchange.device), SideStream(exchange.device)
        if not (isinstance(inner, FlatEngine) and inner.in_stream):
            stages: list[tuple[str, Stage]] = [("thc-gather", self._stages.gather)]
            if self._streams is None:
                stages.insert(0, ("thc-scatter", self._stages.scatter))
            around = nullcontext if self._streams is None else self._streams[1].current
            self._threads = StageThreads(stages, self._fail, around)
        if watch is not None:
            watch.start(partial(_end_early, self._in_flight, inner))
        end = partial(end_engine, self._watch, self._threads, self._in_flight, inner.close, leave)
        self._ending = Ending(self, end, at_exit=self._threads is not None)

    @override
    def start_step(self) -> None:
        if self._watch is not None:
            self._watch.require_same()
        self._begun += 1
        self._begin_steps_if_idle()

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        buffer = real_parts(buffer)
        gradient = buffer.gradient
        require_not_captured(gradient)
        if self._watch is not None:
            self._watch.require_same()
        self._in_flight.require_free(buffer.key)
        future: Future[Tensor] = Future(devices=[gradient.device] if gradient.is_cuda else None)
        if gradient.numel() == 0:
            check_buffer(buffer)
            future.set_result(gradient)
            return future
        kind = kind_of(buffer)
        known = self._layouts.known(buffer.key, kind)
        layout = known or self._new_layout(buffer, kind)
        if self._watch is not None:
            first = ", for the first time" if known is None else ""
            self._watch.began(f"{layout.contents.label}, {gradient.numel()} elements of {gradient.dtype}{first}")
        job = _Job(buffer, layout, self._round, known is None, future, steps=self._begun, host=gradient)
        self._round, self._begun = self._round + 1, 0
        self._in_flight.begin(buffer.key, future)
        if self._streams is None:
            if layout.staging is not None:
                layout.staging.begin(gradient)
            assert self._threads is not None
            self._threads.submit(job)
        else:
            self._put_on_streams(job)
        return future

    @override
    def protect_step(self) -> None:
        self._idle("protect_step").protect_step()

    @override
    def restore_residuals(self) -> None:
        self._idle("restore_residuals").restore_residuals()

    @override
    def use_loss_scale(self, scale: float) -> None:
        inner = self._idle("use_loss_scale")
        self._exchange.use_loss_scale(scale)
        inner.use_loss_scale(scale)

    @override
    def scale_residuals(self, factor: float) -> None:
        self._idle("scale_residuals").scale_residuals(factor)

    @override
    def state_dict(self) -> StateDict:
        """Return the inner engine's state; on a mesh, of this rank's shard in the slow dimension."""
        return self._idle("state_dict").state_dict()

    @override
    def load_state_dict(self, state: State) -> None:
        self._idle("load_state_dict").load_state_dict(state)
        self._round = state["round"]

    @override
    def statistics(self) -> CompressionStats:
        """Return the inner engine's statistics, with copies of whole gradients: bytes are those between the nodes."""
        self._begin_steps_if_idle()
        return self._inner.statistics()

    @override
    def close(self) -> None:
        self._ending.close()

    def _new_layout(self, buffer: GradientBuffer, kind: object) -> LayoutT:
        layout = self._exchange.layout(buffer, self._recorder)
        if self._streams is not None and buffer.gradient.device != self._exchange.device:
            layout.staging = CopyStaging(buffer.gradient, self._streams[1], self._recorder)
        self._layouts.make_room(layout.key, layout.names)
        self._layouts.add(layout, layout.key, layout.names, kind)
        return layout

    def _idle(self, call: str) -> Engine:
        """Return the inner engine, with nothing in flight."""
        self._in_flight.require_idle(call)
        self._begin_steps_if_idle()
        return self._inner

    def _begin_steps_if_idle(self) -> None:
        if self._in_flight.keys():
            return
        try:
            for _ in range(self._begun):
                self._inner.start_step()
        except InputError as error:  # of this rank's shard
            self._fail(error)
            raise
        self._begun = 0

    @torch.no_grad()
    def _put_on_streams(self, job: _Job[LayoutT]) -> None:
        assert self._streams is not None
        there, back = self._streams
        staging = job.layout.staging
        on_device = [job.buffer.gradient] if staging is None else []
        try:
            if staging is not None:
                staging.begin(job.buffer.gradient)
            with there.behind_current(*on_device):
                if staging is not None:
                    job.host = staging.fetch(job.buffer.gradient)
                self._stages.begin(job)
            if self._threads is not None:
                back.uses(*on_device)
                self._threads.submit(job)
                return
            with back.behind_current(*on_device):
                # The stream waits. The future covers the work on it so far.
                for _ in self._stages.gather(job):
                    pass
        except Exception as error:  # Triton's errors have no other base
            self._fail(error)


class _Stages(Generic[LayoutT]):
    """The work of the threads; they hold no NodeEngine, which must end when it is forgotten."""

    def __init__(self, inner: Engine, exchange: NodeExchange[LayoutT], in_flight: InFlight) -> None:
        self._inner, self._exchange, self._in_flight = inner, exchange, in_flight

    def begin(self, job: _Job[LayoutT]) -> None:
        for _ in range(job.steps):
            self._inner.start_step()
        buffer = replace(job.buffer, gradient=job.host)
        job.averaged = self._inner.all_reduce(self._exchange.scatter(job.layout, buffer, job.round, new=job.new))

    def scatter(self, job: _Job[LayoutT]) -> Iterator[_Job[LayoutT]]:
        if job.layout.staging is not None:
            job.host = job.layout.staging.fetch(job.buffer.gradient)
        self.begin(job)
        yield job

    def gather(self, job: _Job[LayoutT]) -> Iterator[None]:
        assert job.averaged is not None
        job.averaged.wait()  # the inner engine has the deadline
        self._exchange.gather(job.layout, job.host)
        if job.layout.staging is not None:
            job.layout.staging.put_back(job.buffer.gradient)
        self._in_flight.finish(job.buffer.key, job.future, job.buffer.gradient)
        return iter(())


def _fail(watch: Watch | None, in_flight: InFlight, error: Exception) -> None:
    if watch is not None and isinstance(error, InputError):
        watch.tell(error)  # the other shards of the node know nothing
    in_flight.fail(error)


def _end_early(in_flight: InFlight, inner: Engine, error: InputError) -> None:
    in_flight.fail(error)
    if isinstance(inner, FlatEngine):
        inner.fail(error)
