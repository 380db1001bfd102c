"""Gloo groups that connect together: ranks are threads here, their groups and connections real."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from byteps_thc._base.errors import ConfigurationError, ThcError
from byteps_thc._net.connecting import connect_groups
from byteps_thc._net.store import StoreCommunicator

RANKS, GROUPS = 3, 5


class Counted(StoreCommunicator):
    exchanges = 0

    def gather(self, text: bytes) -> list[bytes]:
        self.exchanges += 1
        return super().gather(text)


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def on_ranks(work: Callable[[Counted, int], Any], ranks: int = RANKS, timeout_s: float = 30.0) -> list[Any]:
    store = dist.HashStore()

    def run(rank: int) -> Any:
        try:
            return work(Counted(store, rank, ranks, timeout_s), rank)
        except (ThcError, RuntimeError) as error:
            return error

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(run, range(ranks)))


def test_all_groups_of_all_ranks_connect_in_two_exchanges() -> None:
    def work(questions: Counted, rank: int) -> tuple[int, list[float]]:
        groups = connect_groups(questions, rank, RANKS, 30.0, GROUPS)
        sums = []
        for number, group in enumerate(groups):  # each with connections of its own
            tensor = torch.tensor([10.0 * number + rank])
            group.allreduce([tensor]).wait()
            sums.append(float(tensor))
        return questions.exchanges, sums

    wanted = [30.0 * number + 3.0 for number in range(GROUPS)]
    assert on_ranks(work) == [(2, wanted)] * RANKS, "of addresses, and of being connected"


def test_no_groups_and_one_rank() -> None:
    assert on_ranks(lambda questions, rank: connect_groups(questions, rank, RANKS, 30.0, 0)) == [[]] * RANKS
    ((only,),) = on_ranks(lambda questions, rank: connect_groups(questions, rank, 1, 30.0, 1), ranks=1)
    assert only.size() == 1


def test_a_rank_that_cannot_connect_is_named_on_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real = dist.ProcessGroupGloo

    def unless_last(store: Any, rank: int, *args: Any) -> Any:
        if rank == RANKS - 1:
            raise RuntimeError("unable to find address for: eth7")
        return real(store, rank, *args)

    monkeypatch.setattr(dist, "ProcessGroupGloo", unless_last)
    monkeypatch.setattr(dist, "get_rank", lambda: RANKS - 1)  # of the only one that asks
    *others, last = on_ranks(lambda questions, rank: connect_groups(questions, rank, RANKS, 30.0, 2))
    assert str(last) == "unable to find address for: eth7"
    for error in others:
        assert isinstance(error, ConfigurationError), error
        assert str(error) == "rank 2 cannot connect: unable to find address for: eth7"
