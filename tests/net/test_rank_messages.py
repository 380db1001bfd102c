"""Memory of messages among ranks, as much as is under way at a time; and messages of sizes that differ."""

import threading
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from byteps_thc._base.errors import DeadlineError, TransportError
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.gloo import GlooCommunicator
from byteps_thc._net.rank_messages import RankMessages

RANKS, HEADER_BYTES = 3, 16


def alone() -> RankMessages:
    nobody = cast(Any, None)
    return RankMessages(nobody, nobody, StatsRecorder(), RANKS, torch.device("cpu"))


def test_messages_of_all_sizes_use_the_same_memory_one_after_another() -> None:
    """As much as is lent at a time, of the largest size: memory that is too small is replaced."""
    messages = alone()
    small, other = messages.take(64), messages.take(64)
    assert small.shape == other.shape == (RANKS, 64)
    messages.give_back(small)
    large = messages.take(128)
    places = {large.data_ptr(), other.data_ptr()}
    assert len(places) == 2
    for size_bytes in (32, 64, 128, 16):
        messages.give_back(large)
        large = messages.take(size_bytes)
        assert large.shape == (RANKS, size_bytes)
        assert large.is_contiguous()
        assert {large.data_ptr(), other.data_ptr()} == places
    messages.give_back(large)
    messages.give_back(other)
    assert messages.take(64).data_ptr() == other.data_ptr(), "the smallest that is large enough"
    assert {memory.numel() for memory in messages._free} == {RANKS * 128}
    messages.give_back(messages.take(256))
    assert {memory.numel() for memory in messages._free} == {RANKS * 256}


def test_new_memory_is_zeros() -> None:
    """The rest of a message up to its size is sent, too."""
    assert not alone().take(1 << 12).any()


def of_all_ranks(sizes: list[int], timeout_s: float) -> list[dict[str, Any]]:
    """Return the results of an all-to-all by rank, where each rank is a thread with messages of its size."""
    store, results = HashStore(), [dict[str, Any]() for _ in sizes]

    def work(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, RANKS, timedelta(seconds=60))
        communicator = GlooCommunicator(group, timeout_s)
        messages = RankMessages(communicator, communicator, StatsRecorder(), RANKS, torch.device("cpu"))
        sent, received = (messages.take(sizes[rank]) for _ in range(2))
        for owner, message in enumerate(sent):
            message.fill_(10 * rank + owner)
        headers, rest = messages.all_to_all_apart(received, sent, HEADER_BYTES)
        headers.wait()
        results[rank]["headers"] = received[:, :HEADER_BYTES].clone()
        try:
            rest.wait()
            results[rank]["rest"] = received[:, HEADER_BYTES:]
        except (DeadlineError, TransportError) as error:
            results[rank]["error"] = error
            return
        own = torch.full((4,), rank, dtype=torch.uint8)
        gathered = torch.zeros(RANKS, 4, dtype=torch.uint8)
        messages.all_gather(gathered, own).wait()
        results[rank]["gathered"] = gathered

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def wanted(rank: int, size: int) -> Tensor:
    return torch.tensor([[10 * sender + rank] for sender in range(RANKS)], dtype=torch.uint8).expand(RANKS, size)


def test_headers_and_what_is_behind_them_arrive() -> None:
    for rank, result in enumerate(of_all_ranks([64] * RANKS, 30)):
        assert result["headers"].equal(wanted(rank, HEADER_BYTES))
        assert result["rest"].equal(wanted(rank, 64 - HEADER_BYTES))
        assert result["gathered"].tolist() == [[sender] * 4 for sender in range(RANKS)]


@pytest.mark.parametrize("odd", [48, 4096])
def test_headers_arrive_from_a_rank_with_messages_of_another_size(odd: int) -> None:
    """The rest does not, where gloo's own all-to-all ends the process; a rank that waits longer is told so."""
    results = of_all_ranks([64, 64, odd], 5.0)
    for rank, result in enumerate(results):
        assert result["headers"].equal(wanted(rank, HEADER_BYTES))
        assert "rest" not in result
    assert any("other ranks did not answer in time" in str(result["error"]) for result in results)
