"""Engines on recorded streams: no races, no encode that waits for collectives, no memory for every bucket."""

import itertools
import weakref
from collections.abc import Iterator

import torch
from host_calls import POLICY, EchoCommunicator
from recorded_streams import Event, Streams, Work, recorded_streams
from torch import Tensor

from byteps_thc._engine.engine import GradientBuffer, ParameterSlice, ShardMatrix
from byteps_thc._engine.factory import rank_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._net.communicator import Waitable
from byteps_thc._scheme.decoding.settings import RankCodes

CPU, RANKS, STEPS = torch.device("cpu"), 4, 4
#: Parameters of each bucket. The last one travels exactly.
BUCKETS = [[5000, 30], [3000], [4000], [1000, 500], [9]]
COMPRESSED = len(BUCKETS) - 1
COLLECTIVES = ("all-to-all", "all-gather")


class StreamCommunicator(EchoCommunicator):
    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def max_(self, tensor: Tensor) -> Waitable:
        self._streams.work("max", written=[tensor])
        return super().max_(tensor)

    def sum_(self, tensor: Tensor) -> Waitable:
        self._streams.work("sum", written=[tensor])
        return super().sum_(tensor)

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        self._streams.work("all-to-all", [source], [output])
        return super().all_to_all(output, source)

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        self._streams.work("all-gather", [source], [output])
        return super().all_gather(output, source)


def engine_of(streams: Streams, *, sharded: bool = False) -> FlatEngine:
    settings = RankCodes().resolve(RANKS, sharded=sharded)
    return rank_engine(settings, 1, POLICY, [StreamCommunicator(streams)], device=CPU, sharded=sharded)


def buffers() -> Iterator[GradientBuffer]:
    for number, sizes in enumerate(BUCKETS):
        edges = itertools.pairwise([0, *itertools.accumulate(sizes)])
        parts = tuple(ParameterSlice(f"{number}.{place}", *edge) for place, edge in enumerate(edges))
        yield GradientBuffer(f"bucket {number}", torch.randn(sum(sizes)), parts)


def steps_of_ddp(streams: Streams) -> list[list[Work]]:
    """The works of each step. The caller waits for the averages of a step when the next step is under way."""
    engine, before, works = engine_of(streams), list[tuple[GradientBuffer, torch.futures.Future[Tensor]]](), []
    for _ in range(STEPS):
        begun = len(streams.works)
        engine.start_step()
        mine = []
        for buffer in buffers():
            streams.work("backward", written=[buffer.gradient])
            mine.append((buffer, engine.all_reduce(buffer)))
        works.append(streams.works[begun:])
        for buffer, future in before:
            future.wait()
            streams.work("optimizer", [buffer.gradient])
        before = mine
    streams.over = True
    engine.close()
    return works


def check_buckets() -> None:
    with recorded_streams() as streams:
        steps_of_ddp(streams)
    assert not (races := streams.races()), races
    assert len(streams.named("optimizer")) == (STEPS - 1) * len(BUCKETS)
    encodes, *collectives = (streams.named(name) for name in ("encode_blocks_kernel", *COLLECTIVES))
    assert {len(works) for works in (encodes, *collectives)} == {STEPS * COMPRESSED}
    for works in collectives:
        for number, encode in enumerate(encodes):
            assert works[number].follows(encode)
            # The first encode of a layout waits for tables that are written behind all work.
            if number >= COMPRESSED:
                assert not encode.follows(works[number - 1]), f"encode {number} waits for {works[number - 1].name}"
    in_order = [work for work in streams.works if work.name in (*COLLECTIVES, "sum", "max")]
    assert all(later.follows(earlier) for earlier, later in itertools.pairwise(in_order))


def check_messages() -> None:
    """No step takes new memory, although no event is over, and buckets of all sizes share it."""
    with recorded_streams() as streams:
        steps = steps_of_ddp(streams)
    places = []
    for works in steps:
        tensors = [own for work in works if work.name in COLLECTIVES for own in (*work.read, *work.written)]
        places.append({own.untyped_storage().data_ptr(): own.untyped_storage().nbytes() for own in tensors})
    assert places[-1] == places[-2], places
    assert len(places[-1]) == 4, "two for codes to owners, two for codes and averages of owners"
    assert max(places[-1].values()) < 2 * sum(BUCKETS[0]), "a message has about half a byte a coordinate"


def check_groups(*, keep: bool) -> None:
    """Torch keeps an input until the event behind its reduce-scatter, one group at a time. keep: look for races."""
    with recorded_streams(keep=keep) as streams:
        engine, scattering = engine_of(streams, sharded=True), streams.stream()
        kept: list[tuple[Tensor, Event]] = []
        for step, size in itertools.product(range(3), (700, 1200, 300)):
            if size == 700:
                engine.start_step()
            while kept:
                source, scattered = kept.pop()
                scattered.wait()
                gone = weakref.ref(source)
                del source
                assert keep or gone() is None, f"an input is held in step {step}, although nothing is over"
            gradient = torch.randn(RANKS * size)
            streams.work("copy in", written=[gradient])
            scattering.wait_stream(streams.current)
            with streams.on(scattering):
                output = torch.empty(size)
                parts = tuple(ParameterSlice("p", size * row, size * (row + 1)) for row in range(RANKS))
                matrix = ShardMatrix(f"m{size}", RANKS, size, parts, parameters=("p",))
                engine.reduce_scatter(matrix.key, matrix, gradient, output).wait()
                streams.work("divide", written=[output])
                scattered = Event()
                scattered.record()
            kept.append((gradient, scattered))
            del gradient
        streams.over = True
        engine.close()
    assert not streams.deferred, "an allocator keeps inputs until the device has passed"
    assert len(streams.named("all-to-all")) == 9
    assert not (races := streams.races()), races


if __name__ == "__main__":
    check_buckets()
    print("in order: buckets of DDP")
    check_messages()
    print("in order: memory of messages")
    for each in (True, False):
        check_groups(keep=each)
    print("in order: groups of FSDP2")
