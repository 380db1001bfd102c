"""Collectives of NCCL on the engine's own stream, and the end of their communicator; a stand-in is the group."""

import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch

from byteps_thc._net import nccl
from byteps_thc._net.nccl import DeviceCommunicator, end_group


class Group:
    """A back end that returns `work` for collectives. error: raised by shutdown(), which waits for `over`."""

    def __init__(self, error: Exception | None = None, work: Any = None) -> None:
        self.error, self.work = error, work
        self.over = threading.Event()
        self.over.set()
        self.calls: list[str] = []
        self.asynchronous: list[bool] = []

    def collective(self, *arguments: Any) -> Any:
        self.asynchronous.append(arguments[-1].asyncOp)
        return self.work

    allreduce = alltoall_base = _allgather_base = collective

    def shutdown(self) -> None:
        self.over.wait(20)
        self.calls.append("shutdown")
        if self.error is not None:
            raise self.error

    def abort(self) -> None:
        self.calls.append("abort")


def communicator(monkeypatch: pytest.MonkeyPatch, group: Any) -> DeviceCommunicator:
    monkeypatch.setattr(nccl, "_open", lambda *_: group)
    return DeviceCommunicator(None, 0, 1, timedelta(seconds=1))  # type: ignore[arg-type]


def test_it_is_shut_down_once_and_not_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    mine = communicator(monkeypatch, group)
    mine.close()
    mine.close()
    assert group.calls == ["shutdown"]


class Work:
    """A collective that is over once it was asked so many times, or waited for."""

    def __init__(self, asked: float) -> None:
        self.asked, self.waits = asked, 0

    def is_completed(self) -> bool:
        self.asked -= 1
        return self.asked <= 0

    def wait(self) -> None:
        self.waits += 1


@pytest.mark.parametrize("work", [None, Work(5)])  # torch gives none where the current stream is the collective's
def test_collectives_are_in_the_order_of_the_stream(work: Work | None, monkeypatch: pytest.MonkeyPatch) -> None:
    group, tensor = Group(work=work), torch.zeros(2)
    mine = communicator(monkeypatch, group)
    started = [
        mine.max_(tensor),
        mine.sum_(tensor),
        mine.all_to_all(tensor, tensor),
        mine.all_gather(tensor, tensor),
    ]
    for collective in started:
        collective.wait()
    assert group.asynchronous == [False] * 4
    assert work is None or work.waits == 4
    mine.close()
    assert work is None or work.asked == 0, "collectives under way are waited for"
    assert group.calls == ["shutdown"]


def test_an_aborted_communicator_is_not_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    mine = communicator(monkeypatch, group)
    for end in (mine.abort, mine.abort, mine.close):
        end()
    assert group.calls == ["abort"]


@pytest.mark.parametrize("where", ["collective", "shutdown"])
def test_a_dead_rank_does_not_keep_the_end(where: str, caplog: pytest.LogCaptureFixture) -> None:
    group, work = Group(), Work(0)
    if where == "collective":
        work = Work(float("inf"))
    else:
        group.over.clear()
    with caplog.at_level(logging.WARNING, "byteps_thc"):
        end_group(group, work, 0.2)  # would wait for good
    assert group.calls == ["abort"]
    assert "within 0.2 s" in caplog.text
    group.over.set()


def test_a_shutdown_that_fails_is_followed_by_an_abort(caplog: pytest.LogCaptureFixture) -> None:
    group = Group(RuntimeError("remote process exited"))
    with caplog.at_level(logging.WARNING, "byteps_thc"):
        end_group(group, None, 20)
    assert group.calls == ["shutdown", "abort"]
    assert "remote process exited" in caplog.text


def test_python_that_is_ending_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    group = Group()
    end_group(group, None, 20)
    assert group.calls == ["shutdown"]
