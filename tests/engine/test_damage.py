"""Averages of ranks that differ by a bit: all ranks learn it in the next step."""

from pathlib import Path

import pytest

from byteps_thc._engine.fingerprint import LARGEST_WORD, digest_words
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("damage_rank.py")


@pytest.mark.parametrize(
    ("ranks", "routes"), [(2, ["ddp", "gathers"]), (3, ["ddp", "reducer"]), (4, ["levels", "replicas"])]
)
def test_all_ranks_raise_in_the_next_step(ranks: int, routes: list[str], tmp_path: Path) -> None:
    for rank, report in enumerate(run_ranks(PROGRAM, ranks, tmp_path, settings={"routes": routes})):
        assert report["recorded"] == ["ConfigurationError: recorded"] * (7 if ranks == 4 else 0), "a CUDA graph"
        for route, (step, error) in report["routes"].items():
            if route == "replicas" and rank % 2 == 0:  # replicas of the other shard
                assert (step, error) == (3, "")
                continue
            assert step == 2, (route, error)
            assert ("first is last average" if route == "levels" else "differs between workers") in error
            assert ("(worker 2 unlike most)" in error) == (ranks == 3)


@pytest.mark.parametrize("bit", range(32))
def test_every_bit_changes_a_digest(bit: int) -> None:
    words, others = digest_words(0x9ABCDEF0), digest_words(0x9ABCDEF0 ^ 1 << bit)
    assert sum(words) == LARGEST_WORD
    assert sum(map(max, words, others)) > LARGEST_WORD
    assert [max(0, word) for word in words] == [*words]
