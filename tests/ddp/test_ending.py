"""A process ends soon without ThcState.close(), with any step in flight and any peer gone."""

import time
from pathlib import Path

import pytest

from thc_lab.ranks import Ranks

PROGRAM = Path(__file__).with_name("ending_rank.py")
ENDS_WITHIN_S = 15.0  # two seconds for threads, the rest for a busy machine; waits for ranks would take ten minutes


def seconds_to_end(ranks: Ranks, rank: int) -> float:
    """How long the rank's process lives on after it reported."""
    while not (ranks.directory / f"rank{rank}.result").exists() and time.monotonic() < ranks.deadline:
        time.sleep(0.1)
    start = time.monotonic()
    ranks.processes[rank].wait(max(0.0, ranks.deadline - start))
    return time.monotonic() - start


@pytest.mark.parametrize(
    ("how", "codes"),
    [
        pytest.param("returns", {0: 0, 1: 0}, marks=pytest.mark.slow),
        ("raises", {0: 1, 1: 1}),
        pytest.param("in_flight", {0: 0}, marks=pytest.mark.slow),
    ],
)
def test_a_rank_without_close_ends(tmp_path: Path, how: str, codes: dict[int, int]) -> None:
    with Ranks(PROGRAM, 2, tmp_path, settings={"how": how}, timeout_s=60.0) as ranks:
        for rank, code in codes.items():
            assert seconds_to_end(ranks, rank) < ENDS_WITHIN_S
            assert ranks.processes[rank].returncode == code, ranks.log(rank)
