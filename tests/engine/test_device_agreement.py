"""Questions of engines on a device, about gradients of which nothing is compressed; two ranks are two threads."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from byteps_thc._base.errors import InputError
from byteps_thc._engine.agreement import Contents, DeviceAgreement, Questions
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._net.gloo import GlooCommunicator

RANKS, SIZE = 2, 300
ONE, OTHER = (Contents("the buffer of 'a' to 'c'", lines) for lines in (("b first",), ("b last",)))


def ask(store: Store, rank: int, asked: list[Contents]) -> InputError | None:
    """Ask about gradients, one in a round; return the knowledge of that moment."""
    group = dist.ProcessGroupGloo(store, rank, RANKS, timedelta(seconds=60))
    agreement = DeviceAgreement(
        Fingerprints(("settings",), rank), torch.device("cpu"), GlooCommunicator(group, 60), Questions()
    )
    for round, contents in enumerate(asked):
        agreement.require_same(contents, SIZE, round)
    return agreement.wait()


def answers(*asked: list[Contents]) -> list[InputError | None]:
    store = HashStore()
    with ThreadPoolExecutor(RANKS) as ranks:
        return list(ranks.map(lambda rank: ask(store, rank, asked[rank]), range(RANKS)))


def test_same_gradients() -> None:
    assert answers([ONE, OTHER, ONE], [ONE, OTHER, ONE]) == [None, None]


def test_other_parameters_under_a_label_that_was_asked_about_before() -> None:
    for error in answers([ONE, ONE], [ONE, OTHER]):
        assert error is not None
        assert "workers average different gradients" in str(error)


def test_what_is_the_same_again_does_not_end_a_disagreement() -> None:
    for error in answers([ONE, ONE, ONE], [ONE, OTHER, ONE]):
        assert error is not None
        assert "in round 1" in str(error)


class LateEvent:
    """An event of a stream that is over only when the host waits."""

    def __init__(self, **_: Any) -> None:
        self.over = True

    def record(self) -> None:
        self.over = False

    def query(self) -> bool:
        return self.over

    def synchronize(self) -> None:
        self.over = True


def agreement() -> DeviceAgreement:
    communicator = Mock()  # whose maxima are this rank's words
    return DeviceAgreement(Fingerprints(("settings",), 0), torch.device("cpu"), communicator, Questions())


def test_a_device_tells_in_the_second_step_however_late_its_events_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", LateEvent)
    mine = agreement()
    mine._copy = torch.zeros(4, dtype=torch.int32)
    number = mine.number(["a"], SIZE, "a", "layout")
    assert mine.look() is None
    mine.state.copy_(torch.tensor([number, 1, 5, 7]))  # ranks differ in the step that has begun
    assert mine.look() is None
    assert "workers average different gradients" in str(mine.look())


def test_averages_of_aborted_collectives_are_nan() -> None:
    mine, error = agreement(), InputError("another rank")
    values = torch.ones(3)
    mine.spoiled(Mock())(values).wait()
    assert values.isfinite().all()
    mine.spoil(error)
    mine.require_same(ONE, SIZE, 0)  # another gradient does not end it
    mine.spoiled(Mock())(values).wait()
    assert values.isnan().all()
    assert mine.look() is mine.wait() is error
