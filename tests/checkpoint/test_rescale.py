"""Shares of a checkpoint: by numbers alone."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc.checkpoint.loading import Share, shares

counts = st.integers(1, 40)


@given(old=counts, new=counts)
def test_the_mean_is_kept(old: int, new: int) -> None:
    """Sum over new ranks / new = sum over old ranks / old, for whatever the old ranks have."""
    total = [Fraction(0)] * old
    for worker in range(new):
        for share in shares(worker, new, old):
            total[share.worker] += share.weight
    assert total == [Fraction(new, old)] * old


@given(old=counts, new=counts)
def test_a_share_is_a_mean_of_as_few_old_ranks_as_possible(old: int, new: int) -> None:
    for worker in range(new):
        taken = shares(worker, new, old)
        assert sum(share.weight for share in taken) == 1
        assert all(share.weight > 0 for share in taken)
        assert len(taken) <= -(-old // new) + 1


@given(ranks=counts)
def test_as_many_ranks_take_their_own(ranks: int) -> None:
    assert [shares(worker, ranks, ranks) for worker in range(ranks)] == [[Share(w, Fraction(1))] for w in range(ranks)]


def test_examples() -> None:
    assert shares(1, 2, 4) == [Share(2, Fraction(1, 2)), Share(3, Fraction(1, 2))]
    assert shares(3, 4, 2) == [Share(1, Fraction(1))]
    assert shares(0, 2, 3) == [Share(0, Fraction(2, 3)), Share(1, Fraction(1, 3))]


@pytest.mark.parametrize(("worker", "workers", "old"), [(2, 2, 2), (-1, 2, 2), (0, 1, 0)])
def test_no_such_rank(worker: int, workers: int, old: int) -> None:
    with pytest.raises(ConfigurationError, match="no such rank"):
        shares(worker, workers, old)
