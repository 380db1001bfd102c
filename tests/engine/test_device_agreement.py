"""Questions of engines on a device, about gradients of which nothing is compressed; two ranks are two threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from byteps_thc._engine.agreement import Contents, DeviceAgreement, Questions
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._net.gloo import GlooCommunicator
from byteps_thc._scheme.errors import InputError

RANKS, SIZE = 2, 300
ONE, OTHER = (Contents("the buffer of 'a' to 'c'", lines) for lines in (("b first",), ("b last",)))


def ask(store: Store, rank: int, asked: list[Contents]) -> InputError | None:
    """Ask about gradients, one in a round; return what is known then."""
    group = dist.ProcessGroupGloo(store, rank, RANKS, timedelta(seconds=60))
    agreement = DeviceAgreement(
        Fingerprints(("settings",), rank), torch.device("cpu"), GlooCommunicator(group, 60), Questions()
    )
    for round, contents in enumerate(asked):
        agreement.require_same(contents, SIZE, round)
    return agreement.wait()


def answers(*asked: list[Contents]) -> list[InputError | None]:
    """Return what the ranks know."""
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
