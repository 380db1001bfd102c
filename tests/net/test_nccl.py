"""How NCCL's communicator ends; of its group there is a stand-in."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch

from byteps_thc._net import nccl
from byteps_thc._net.nccl import DeviceCommunicator, end_group


class Group:
    """A process group's back end. error: of shutdown(), which waits for `over`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.over = threading.Event()
        self.over.set()
        self.calls: list[str] = []

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
    """Of a collective that is over once it was asked so many times."""

    def __init__(self, asked: float) -> None:
        self.asked = asked

    def is_completed(self) -> bool:
        self.asked -= 1
        return self.asked <= 0


def test_collectives_that_are_under_way_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    group, work = Group(), Work(5)
    mine = communicator(monkeypatch, group)
    group.allreduce = lambda *_: work  # type: ignore[attr-defined]
    assert mine.max_(torch.zeros(1)) is work
    mine.close()
    assert work.asked == 0
    assert group.calls == ["shutdown"]


def test_collectives_on_the_current_stream_have_no_work_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    mine = communicator(monkeypatch, group)
    group.allreduce = lambda *_: None  # type: ignore[attr-defined]
    mine.max_(torch.zeros(1)).wait()
    mine.close()
    assert group.calls == ["shutdown"]


@pytest.mark.parametrize("where", ["collective", "shutdown"])
def test_a_dead_rank_does_not_keep_the_end(where: str, caplog: pytest.LogCaptureFixture) -> None:
    group, work = Group(), Work(0)
    if where == "collective":
        work = Work(float("inf"))
    else:
        group.over.clear()
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, "byteps_thc"):
        end_group(group, work, 0.2)
    assert time.monotonic() - start < 10
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
