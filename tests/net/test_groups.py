"""How an engine's communicators are opened and ended; stand-ins are the process groups."""

from typing import Any, cast

import pytest
import torch.distributed as dist

from byteps_thc._base.errors import ConfigurationError, DeadlineError, TransportError
from byteps_thc._net import groups
from byteps_thc._net.groups import Communicators
from byteps_thc._net.store import StoreCommunicator


class Group:
    """A process group of one rank, with back ends of some names."""

    def __init__(self, *names: str) -> None:
        self.names, self.store = names, dist.HashStore()

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def get_group_store(self) -> dist.HashStore:
        return self.store


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "backends", lambda group: [*group.names])


class Opened:
    def __init__(self, name: str, ended: list[str]) -> None:
        self._name, self._ended = name, ended

    def close(self) -> None:
        self._ended.append(self._name)


def test_they_end_in_the_order_in_which_they_were_opened_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(groups, "_connect", lambda *args: [Opened("host", ended)] * args[-1])
    monkeypatch.setattr(groups, "DeviceCommunicator", lambda *_: Opened("device", ended))
    mine = Communicators(cast(Any, Group("nccl")), 1.0)
    mine.of_device()
    mine.of_host(2)
    mine.of_device()
    mine.close()
    mine.close()
    assert ended == ["device", "host", "host", "device"]


def test_questions_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a question needs no connections")

    monkeypatch.setattr(groups, "_connect", refuse)
    monkeypatch.setattr(groups, "DeviceCommunicator", refuse)
    assert isinstance(Communicators(cast(Any, Group("nccl")), 1.0).for_questions(), StoreCommunicator)


@pytest.mark.parametrize(
    ("reason", "error"), [("Connection refused", TransportError), ("Timed out waiting for clients", DeadlineError)]
)
def test_a_host_that_gloo_does_not_reach_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch, reason: str, error: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(reason)

    monkeypatch.setattr(dist, "ProcessGroupGloo", fail)
    with pytest.raises(error, match=f"{reason}.*GLOO_SOCKET_IFNAME, as in NCCL_SOCKET_IFNAME"):
        Communicators(cast(Any, Group("nccl")), 1.0).of_host(2)


def test_other_back_ends_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\['mpi'\] are not supported: use gloo or nccl"):
        Communicators(cast(Any, Group("mpi")), 1.0)
