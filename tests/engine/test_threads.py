"""How many threads kernels use, and who decides it."""

from __future__ import annotations

import os

import pytest

from byteps_thc import CompressionPolicy, Compressor, ConfigurationError, ThcConfig
from byteps_thc._scheme.limits import MAX_THREADS, default_threads


@pytest.mark.parametrize(
    ("cores", "local_ranks", "threads"),
    [(2, 1, 2), (2, 2, 1), (2, 4, 1), (64, 1, 8), (64, 8, 8), (64, 16, 4), (7, 2, 3)],
)
def test_default_is_the_share_of_a_rank(
    monkeypatch: pytest.MonkeyPatch, cores: int, local_ranks: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert default_threads(local_ranks) == threads
    assert CompressionPolicy().thread_count(local_ranks) == threads
    assert CompressionPolicy(threads=3).thread_count(local_ranks) == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local_ranks))  # torchrun's
    assert default_threads() == threads
    pool = Compressor(ThcConfig(), workers=1, worker=0).pool
    assert (1 if pool is None else pool.threads) == threads


@pytest.mark.parametrize("text", ["0", "-1", "two", "\u00b2"])
def test_a_damaged_environment_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
    with pytest.raises(ConfigurationError, match="LOCAL_WORLD_SIZE must be a number of processes"):
        default_threads()


@pytest.mark.parametrize("threads", [0, MAX_THREADS + 1])
def test_threads_out_of_range(threads: int) -> None:
    with pytest.raises(ConfigurationError, match="threads"):
        Compressor(ThcConfig(), workers=1, worker=0, threads=threads)
    with pytest.raises(ConfigurationError, match="threads"):
        CompressionPolicy(threads=threads)


def test_ranks_may_have_different_numbers_of_threads() -> None:
    assert "threads" not in CompressionPolicy(threads=3).shared_settings()
