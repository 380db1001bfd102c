"""Collectives of NCCL on the engine's own stream; its process group is a list of what is asked of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

from byteps_thc._net import nccl
from byteps_thc._net.communicator import on_current_stream


class Group:
    """Gives `work` for all collectives, and notes whether they are asynchronous."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.asynchronous: list[bool] = []

    def allreduce(self, tensors: list[Tensor], options: Any) -> Any:  # noqa: ARG002
        return self._note(options)

    def alltoall_base(self, output: Tensor, source: Tensor, sent: list[int], received: list[int], options: Any) -> Any:  # noqa: ARG002
        return self._note(options)

    def _allgather_base(self, output: Tensor, source: Tensor, options: Any) -> Any:  # noqa: ARG002
        return self._note(options)

    def _note(self, options: Any) -> Any:
        self.asynchronous.append(options.asyncOp)
        return self.work


class Work:
    def __init__(self) -> None:
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


@pytest.mark.parametrize("work", [None, Work()])  # torch gives none where the current stream is the collective's
def test_collectives_are_in_the_order_of_the_stream(work: Work | None, monkeypatch: pytest.MonkeyPatch) -> None:
    group, tensor = Group(work), torch.zeros(2)
    monkeypatch.setattr(nccl, "_open", lambda *_: group)
    communicator = nccl.DeviceCommunicator(None, 0, 1, timedelta(seconds=1))  # type: ignore[arg-type]
    started = [
        communicator.max_(tensor),
        communicator.sum_(tensor),
        communicator.all_to_all(tensor, tensor),
        communicator.all_gather(tensor, tensor),
    ]
    for collective in started:
        collective.wait()
    assert group.asynchronous == [False] * 4
    assert work is None or work.waits == 4


def test_older_torch_has_no_such_option() -> None:
    options = object()
    assert on_current_stream(options) is options
