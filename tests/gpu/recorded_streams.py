"""Streams and events in place of torch.cuda's, on CPU tensors: which work waits for which, and which does not.

Kernels do not run. A work's clock has for each stream how much is over before the work begins; events hand clocks on,
as in CUDA. Two works on the same memory, one of which writes, are a race unless one is over before the other begins.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from recorded_calls import launches
from torch import Tensor
from torch.futures import Future

from byteps_thc._engine import flat_engine, staging
from byteps_thc._engine.staging import SideStream
from byteps_thc._scheme.decoding.gpu.block_batch import BlockBatch

Clock = dict[int, int]
#: Arguments that kernels write; `begun` is written by the first kernel of a round alone.
WRITTEN = {
    "encode_blocks_kernel": {"sent", "begun"},
    "recode_blocks_kernel": {"own_message"},
    "decode_blocks_kernel": {"out", "state", "differ"},
}


def after(clock: Clock, other: Clock) -> Clock:
    """The clock of work that waits for both."""
    return {stream: max(clock.get(stream, 0), other.get(stream, 0)) for stream in {*clock, *other}}


@dataclass(eq=False)
class Stream:
    number: int
    clock: Clock = field(default_factory=dict)

    def wait_event(self, event: "Event") -> None:
        self.clock = after(self.clock, event.clock)

    def wait_stream(self, other: "Stream") -> None:
        self.clock = after(self.clock, other.clock)


@dataclass(frozen=True, eq=False)
class Work:
    """name: of a kernel, a collective or a caller's work. clock: own number included. read, written: tensors."""

    name: str
    stream: int
    clock: Clock
    read: tuple[Tensor, ...]
    written: tuple[Tensor, ...]

    def follows(self, other: "Work") -> bool:
        return self.clock.get(other.stream, 0) >= other.clock[other.stream]


class Event:
    """Not over before all streams are: the host runs ahead."""

    streams: "Streams"

    def __init__(self, **_: Any) -> None:
        self.clock: Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        self.clock = dict((stream or self.streams.current).clock)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.streams.current).wait_event(self)

    def query(self) -> bool:
        return self.streams.over


class Streams:
    """All streams of a device. keep: hold the memory of all work, so that none is used again without notice."""

    def __init__(self, *, keep: bool) -> None:
        self._numbers, self._keep = itertools.count(), keep
        self.current = self.backward = self.stream()
        self.works: list[Work] = []
        self.over = False
        #: tensors whose memory an allocator would keep until a stream has passed (record_stream)
        self.deferred: list[Tensor] = []

    def stream(self, *_: Any, **__: Any) -> Stream:
        return Stream(next(self._numbers))

    def work(self, name: str, read: Sequence[Tensor] = (), written: Sequence[Tensor] = ()) -> None:
        number, clock = self.current.number, self.current.clock
        self.current.clock = {**clock, number: clock.get(number, 0) + 1}
        tensors = (tuple(read), tuple(written)) if self._keep else ((), ())
        self.works.append(Work(name, number, self.current.clock, *tensors))

    def named(self, name: str) -> list[Work]:
        return [work for work in self.works if work.name == name]

    def races(self) -> list[str]:
        return [
            f"{second.name} of stream {second.stream} does not wait for {first.name} of stream {first.stream}"
            for first, second in itertools.combinations(self.works, 2)
            if not second.follows(first) and _touch(first, second)
        ]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


def _touch(first: Work, second: Work) -> bool:
    either = [(*first.read, *first.written), (*second.read, *second.written)]
    return any(
        _overlap(mine, theirs)
        for written, touched in ((first.written, either[1]), (second.written, either[0]))
        for mine, theirs in itertools.product(written, touched)
    )


def _overlap(one: Tensor, other: Tensor) -> bool:
    start, other_start = one.data_ptr(), other.data_ptr()
    return start < other_start + other.nbytes and other_start < start + one.nbytes


class _Average(Future[Tensor]):
    """As torch's with devices: behind the stream that sets it, and wait() makes the current stream wait."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams, self._done = streams, Event()

    def set_result(self, result: Tensor) -> None:
        self._done.record()
        super().set_result(result)

    def wait(self) -> Tensor:
        self._done.wait()
        return super().wait()


@contextmanager
def recorded_streams(*, keep: bool = True) -> Iterator[Streams]:
    """Engines that are made and used within the block have streams. keep: see Streams."""
    streams = Streams(keep=keep)

    def launched(_launch: object, launcher: Any, _programs: int, arguments: Any, *_others: Any) -> None:
        kernel = launcher._kernel.fn
        tensors = {name: own for name, own in zip(_names(kernel), arguments, strict=False) if isinstance(own, Tensor)}
        written = WRITTEN[kernel.__name__]
        streams.work(
            kernel.__name__,
            [own for name, own in tensors.items() if name not in written],
            [own for name, own in tensors.items() if name in written],
        )

    made = BlockBatch.__init__

    def make(batch: BlockBatch, *arguments: Any, **options: Any) -> None:
        made(batch, *arguments, **options)
        streams.work("upload", written=[batch._begun, batch._sent.fixed, batch._decoded.fixed])

    cuda = {"Stream": streams.stream, "Event": Event, "stream": streams.on}
    cuda["current_stream"] = lambda *_: streams.current
    with ExitStack() as patches, launches(launched):
        for each in (
            patch.object(Event, "streams", streams, create=True),
            patch.multiple(torch.cuda, **cuda),
            patch.object(staging, "has_streams", lambda _: True),
            patch.object(SideStream, "uses", lambda _, *tensors: streams.deferred.extend(tensors)),
            patch.object(flat_engine, "_future", lambda _: _Average(streams)),
            patch.object(BlockBatch, "__init__", make),
        ):
            patches.enter_context(each)
        yield streams


def _names(kernel: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    return names
