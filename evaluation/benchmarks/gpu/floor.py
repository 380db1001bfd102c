"""Cost of single calls on the host: the floor under everything that an engine puts on a stream.

    PYTHONPATH=evaluation/benchmarks/gpu:evaluation python -P evaluation/benchmarks/gpu/floor.py [--stand-in]

Microseconds of host time of a call that starts something and waits for nothing.
"""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from place import Place, Table, arguments_of, place_of
from torch import Tensor
from torch.futures import Future

from byteps_thc._net.groups import Communicators
from byteps_thc._scheme.gpu.launch import Launcher

_CALLS, _FEW_CALLS = 200, 2
_NODES = (1, 5, 15)


@triton.jit
def _add_one(x, size: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(x + at, tl.load(x + at) + 1)


Call = tuple[str, Callable[[], object]]


def calls_of_torch(place: Place, x: Tensor) -> Iterator[Call]:
    """Calls that also work without a GPU."""
    yield "x.fill_(1)", lambda: x.fill_(1)
    launcher = Launcher(_add_one)
    yield "a kernel that was launched before (gpu/launch.py)", lambda: launcher(1, (x,), (256,), 4)
    yield "a kernel by Triton's own look-up", lambda: _add_one[(1,)](x, 256, num_warps=4)

    def future() -> None:
        mine: Future[Tensor] = Future(devices=[place.device] if place.on_gpu else None)
        mine.set_result(x)
        mine.wait()

    yield "Future: made, set, waited for by the stream", future


def calls_of_cuda(x: Tensor) -> Iterator[Call]:
    """Calls of streams, events and graphs."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for nodes in _NODES:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(nodes):
                x.fill_(1)
        yield f"replay of a CUDA graph of {nodes}", graph.replay

    def event() -> None:
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        side.wait_event(done)

    yield "an event: made, recorded, waited for by another stream", event
    yield "wait_stream", lambda: side.wait_stream(torch.cuda.current_stream())

    def switch() -> None:
        with torch.cuda.stream(side):
            pass

    yield "another stream is current, and back", switch
    yield "record_stream", lambda: x.record_stream(side)


def collectives(place: Place, x: Tensor) -> Iterator[Call]:
    """Calls of torch.distributed, and of an engine's own communicator."""
    out, group = torch.empty_like(x), place.group
    for waits in (False, True):
        how = "async_op=False" if waits else "async_op=True, waited for by the stream"

        def finish(work: dist.Work | None, waits: bool = waits) -> None:
            if not waits and work is not None:
                work.wait()

        yield f"all_reduce, {how}", lambda w=waits, f=finish: f(dist.all_reduce(x, group=group, async_op=not w))
        yield (
            f"all_to_all_single, {how}",
            lambda w=waits, f=finish: f(dist.all_to_all_single(out, x, group=group, async_op=not w)),
        )
        yield (
            f"all_gather_into_tensor, {how}",
            lambda w=waits, f=finish: f(dist.all_gather_into_tensor(out, x, group=group, async_op=not w)),
        )
    communicators = Communicators(group, 60)
    mine = communicators.of_device() if place.on_gpu else communicators.of_host(1)[0]
    words, sent, received = (
        torch.zeros(256, dtype=kind, device=place.device) for kind in (torch.int32, *[torch.uint8] * 2)
    )
    yield "an engine's maximum", lambda: mine.max_(words).wait()
    yield "an engine's all-to-all", lambda: mine.all_to_all(received, sent).wait()
    yield "an engine's all-gather", lambda: mine.all_gather(received, sent).wait()
    communicators.close()


def main() -> None:
    arguments = arguments_of(__doc__)
    table = Table(arguments.json, ["call", "us of the host"])
    with place_of(arguments) as place:
        x = torch.zeros(256, device=place.device)
        calls = _CALLS if place.on_gpu else _FEW_CALLS
        for name, call in (
            *calls_of_torch(place, x),
            *(calls_of_cuda(x) if place.on_gpu else ()),
        ):
            table.add(name, place.host_us(call, calls))
        for name, call in collectives(place, x):  # which end their communicator behind the last one
            table.add(name, place.host_us(call, calls))


if __name__ == "__main__":
    main()
