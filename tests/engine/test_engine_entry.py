"""The engine's checks when a gradient arrives, and before the memory of others is freed."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from byteps_thc import ServerCodes
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.agreement import Questions
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import host_engine, open_kernels
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.hierarchy.engine import NodeEngine
from byteps_thc._engine.in_flight import require_not_captured
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.staging import SideStream
from byteps_thc._engine.statistics import StatsRecorder

CPU = torch.device("cpu")


class Transport:
    codes_per_chunk = None
    lends = False
    resolved: Any = None

    def close(self) -> None:
        pass


def engine(*, leave: Callable[[], None] | None = None, stream: SideStream | None = None) -> FlatEngine:
    recorder, config = StatsRecorder(), ServerCodes(rotation_block=1024)
    kernels = open_kernels(None, config, workers=1, worker=0, threads=1, recorder=recorder)
    return host_engine(
        replace(kernels, stream=stream or kernels.stream),
        CompressionPolicy(),
        transport=cast(Any, Transport()),
        exact=cast(Any, None),
        questions=Questions(),
        recorder=recorder,
        leave=leave,
    )


def average(mine: FlatEngine, key: str, names: str) -> Tensor:
    gradient = torch.ones(100 * len(names))
    slices = tuple(ParameterSlice(name, 100 * i, 100 * (i + 1)) for i, name in enumerate(names))
    return mine.all_reduce(GradientBuffer(key, gradient, slices)).wait()


class Watched(SideStream):
    """Notes the known layouts when the host waits for it."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.engine: FlatEngine
        self.waits: list[set[str]] = []

    def wait(self) -> None:
        self.waits.append(set(self.engine._layouts._known))

    def wait_at_most(self, limit_s: float) -> None:
        assert limit_s < 10
        self.wait()


def test_uploads_are_over_before_layouts_and_their_pinned_memory_go() -> None:
    stream = Watched()
    mine = stream.engine = engine(stream=stream)
    mine.start_step()
    average(mine, "1", "ab")
    average(mine, "1", "ab")
    assert stream.waits == []
    average(mine, "2", "bc")  # as when DDP rebuilds its buckets
    assert stream.waits == [{"1"}]
    mine.load_state_dict(mine.state_dict())
    assert stream.waits == [{"1"}, {"2"}]
    average(mine, "2", "bc")
    mine.close()
    assert stream.waits == [{"1"}, {"2"}, {"2"}]


def test_the_communicators_end_after_what_uses_them() -> None:
    order = list[str]()
    mine = engine(leave=lambda: order.append("communicators"))
    mine._driver.join = lambda: order.append("driver")  # type: ignore[method-assign]
    mine.close()
    assert order == ["driver", "communicators"]


def test_those_of_a_node_end_after_the_inner_engine() -> None:
    order = list[str]()
    mine = engine(leave=lambda: order.append("inner"))
    exchange = SimpleNamespace(size=1, rank=0, in_stream=False)
    NodeEngine(mine, cast(Any, exchange), mine.recorder, leave=lambda: order.append("node")).close()
    assert order == ["inner", "node"]


def test_gradients_in_a_graph_that_is_recorded_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu, on_host = cast(Any, SimpleNamespace(is_cuda=True)), torch.ones(1)
    capturing = True
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    with pytest.raises(ConfigurationError, match=r"reduce-overhead.*Record the forward pass without backward"):
        require_not_captured(on_host, on_gpu)
    require_not_captured(on_host)
    capturing = False
    require_not_captured(on_host, on_gpu)
