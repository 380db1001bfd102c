"""What of a buffer's work is recorded, and when; tests/gpu/engine_bits.py has the engine with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from byteps_thc import CompressionPolicy
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.device.recording import MAX_RECORDINGS, WARM_UP_ROUNDS, Recordings


class Log:
    """A Record of work that has a name."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.lines.append("recorded")
        return lambda: (self.lines.append("replayed"), work())[1]

    def work(self, name: str) -> Callable[[], None]:
        return lambda: self.lines.append(name)

    def taken(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


def test_work_is_recorded_after_some_rounds_and_replayed_from_then_on() -> None:
    log, place = Log(), torch.zeros(4)
    recordings = Recordings(log.record)
    for _ in range(WARM_UP_ROUNDS):
        recordings.run("codes", log.work("a"), place)
    assert log.taken() == ["a"] * WARM_UP_ROUNDS
    for _ in range(2):
        recordings.run("codes", log.work("a"), place)
    assert log.taken() == ["recorded", "replayed", "a", "replayed", "a"]


@pytest.mark.parametrize("other", [lambda place: place[1:], lambda place: place.view(torch.int32)])
def test_what_lies_elsewhere_or_is_of_another_type_is_not_what_was_recorded(
    other: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    log, place = Log(), torch.zeros(4)
    recordings = Recordings(log.record)
    for _ in range(WARM_UP_ROUNDS + 1):
        recordings.run("codes", log.work("a"), place)
    log.taken()
    recordings.run("codes", log.work("b"), other(place))
    recordings.run("sums", log.work("c"), place)
    assert log.taken() == ["b", "c"]


def test_there_is_an_end_to_recordings() -> None:
    """Gradients that are elsewhere in each round cost no more memory."""
    log, places = Log(), torch.zeros(1000)
    recordings = Recordings(log.record)
    for place in places.split(1):
        recordings.run("codes", log.work("a"), place)
    assert log.taken() == ["a"] * 1000
    assert len(recordings._rounds) < 100
    for place in places[:40].split(1):
        for _ in range(WARM_UP_ROUNDS + 1):
            recordings.run("codes", log.work("a"), place)
    assert log.taken().count("recorded") == MAX_RECORDINGS


def test_nothing_is_recorded_by_default() -> None:
    log = Log()
    recordings = Recordings(None)
    for _ in range(WARM_UP_ROUNDS + 2):
        recordings.run("codes", log.work("a"))
    assert log.taken() == ["a"] * (WARM_UP_ROUNDS + 2)
    assert not CompressionPolicy().cuda_graphs


def test_graphs_are_a_matter_of_each_rank_and_of_gpu_kernels() -> None:
    assert CompressionPolicy(cuda_graphs=True).shared_settings() == CompressionPolicy().shared_settings()
    with pytest.raises(ConfigurationError, match="there are no CUDA graphs with"):
        CompressionPolicy(cuda_graphs=True, kernels="host")
