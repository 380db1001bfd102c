"""The store as a communicator: ranks are threads here."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import byteps_thc._net.store
from byteps_thc._base.errors import ConfigurationError, DeadlineError, InputError, ThcError
from byteps_thc._net.handshake import all_have_same, introduce
from byteps_thc._net.store import StoreCommunicator

RANKS = 3


@pytest.fixture(params=["hash", "tcp", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dist.Store:
    if request.param == "hash":
        return dist.HashStore()
    if request.param == "file":
        return dist.FileStore(str(tmp_path / "store"), RANKS)
    return dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10), wait_for_workers=False)


def on_ranks(store: dist.Store, work: Callable[[StoreCommunicator, int], Any], timeout_s: float = 20.0) -> list[Any]:
    prefix = f"thc{store.add('calls', 1)}"  # as every communicator has a store of its own

    def run(rank: int) -> Any:
        try:
            # A client for each: one that waits would keep the others waiting.
            mine = store.clone() if isinstance(store, dist.TCPStore) else store
            return work(StoreCommunicator(dist.PrefixStore(prefix, mine), rank, RANKS, timeout_s), rank)
        except ThcError as error:
            return error

    with ThreadPoolExecutor(RANKS) as ranks:
        return list(ranks.map(run, range(RANKS)))


def test_all_collectives(store: dist.Store) -> None:
    def work(communicator: StoreCommunicator, rank: int) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for _ in range(3):  # rests of an earlier collective do not disturb
            largest = torch.tensor([rank, -rank], dtype=torch.int32)
            communicator.max_(largest).wait()
            everyone = torch.zeros(2 * RANKS, dtype=torch.uint8)
            communicator.all_gather(everyone, torch.tensor([rank, 7], dtype=torch.uint8)).wait()
            results = {"max": largest, "gather": everyone}
        return {name: tensor.tolist() for name, tensor in results.items()}

    assert on_ranks(store, work) == [{"max": [RANKS - 1, 0], "gather": [0, 7, 1, 7, 2, 7]}] * RANKS


def test_texts_may_have_any_length_and_bytes(store: dist.Store) -> None:
    texts = [b"", b" x+-\0 " * 3, bytes(range(256)) * 300]
    assert on_ranks(store, lambda communicator, rank: communicator.gather(texts[rank])) == [texts] * RANKS


class CountingStore(dist.Store):
    """Counts the calls that wait for an answer of the store, a round trip each; set() does not (TCPStore)."""

    def __init__(self, store: dist.Store, counts: dict[str, int]) -> None:
        super().__init__()
        self._store, self._counts = store, counts

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattribute__(name)
        trips = {"wait": 1, "compare_set": 1, "check": 1, "add": 1, "delete_key": 1, "get": 2, "multi_get": 2}
        self._counts["round trips"] = self._counts.get("round trips", 0) + (0 if name == "set" else trips[name])
        return getattr(self._store, name)


def test_an_exchange_takes_two_round_trips_however_many_ranks_there_are() -> None:
    store, counts = dist.HashStore(), [dict[str, int]() for _ in range(RANKS)]

    def run(rank: int) -> list[bytes]:
        counting: Any = CountingStore(dist.PrefixStore("thc", store), counts[rank])
        return StoreCommunicator(counting, rank, RANKS, 20.0).gather(b"%d" % rank)

    with ThreadPoolExecutor(RANKS) as ranks:
        assert [*ranks.map(run, range(RANKS))] == [[b"0", b"1", b"2"]] * RANKS
    # Rank 0 has to read the others' texts, too, and to see that they have the answer.
    assert [each["round trips"] for each in counts] == [4, 2, 2]


def test_what_was_exchanged_does_not_stay_in_the_store() -> None:
    store = dist.HashStore()
    on_ranks(store, lambda communicator, rank: communicator.gather(b"x" * (rank + 1)))
    for name in ("1", "2", "all", "taken1", "taken2"):
        assert store.get(f"thc1/0/{name}") == b""


def test_handshakes_say_who_has_what(store: dist.Store) -> None:
    with pytest.MonkeyPatch.context() as patch:
        numbers = threading.local()
        patch.setattr(dist, "get_rank", lambda: numbers.rank)

        def numbered(communicator: StoreCommunicator, rank: int) -> None:
            numbers.rank = rank
            introduce(communicator.gather, {"bits": 4 if rank < 2 else 3})

        errors = on_ranks(store, numbered)
    assert all(isinstance(error, ConfigurationError) for error in errors)
    assert {str(error) for error in errors} == {
        "ranks have different settings: bits is 4 on rank 0, 4 on rank 1, 3 on rank 2"
    }


def test_questions(store: dist.Store) -> None:
    assert on_ranks(store, lambda communicator, _: all_have_same([communicator], 1 << 61)) == [True] * RANKS
    assert on_ranks(store, lambda communicator, rank: all_have_same([communicator], rank)) == [False] * RANKS


def test_a_rank_that_does_not_come_is_named_after_the_deadline(store: dist.Store) -> None:
    start = time.monotonic()

    def work(communicator: StoreCommunicator, rank: int) -> None:
        if rank != 1:
            communicator.max_(torch.tensor([1], dtype=torch.int32)).wait()

    first, _, last = on_ranks(store, work, timeout_s=1.0)
    assert time.monotonic() - start < 15
    assert isinstance(first, DeadlineError), first
    assert "rank 1 of the group did not answer within 1 s" in str(first)
    assert "has it ended, or does it not call compress()" in str(first)
    assert isinstance(last, DeadlineError), last
    assert "not all ranks of the group (its rank 0 says which) answered within 1 s" in str(last)


def test_another_thread_uses_the_store_and_ends_a_wait(store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byteps_thc._net.store, "_SLICE_S", 0.1)

    def work(communicator: StoreCommunicator, rank: int) -> None:
        if rank == 1:
            return
        looked = threading.Event()

        def meanwhile() -> None:
            if looked.is_set():
                raise InputError("ranks differ")

        def look() -> None:
            communicator._store.check(["error"])
            looked.set()

        communicator.meanwhile = meanwhile
        threading.Timer(0.5, look).start()
        communicator.gather(b"")

    first, _, last = on_ranks(store, work)
    for error in (first, last):
        assert isinstance(error, InputError), error
