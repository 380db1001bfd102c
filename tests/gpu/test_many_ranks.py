"""Many ranks in one process, in Triton's interpreter: the program as on a GPU, without streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fork_server import start_program

HERE = Path(__file__).parent
DEADLINE_S = 500
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def many_ranks(variables: dict[str, str], tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run the program with arguments; how it ended, and what it printed."""

    def run(*arguments: str) -> tuple[int, str]:
        log = tmp_path / "output"
        program = start_program(
            HERE / "many_ranks.py", *arguments, environment=variables, log=log, folder=tmp_path,
            before_import=INTERPRETER,
        )  # fmt: skip
        try:
            status = program.wait(DEADLINE_S)
        finally:
            program.kill()
        return status, log.read_text(encoding="utf-8", errors="replace")

    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_buckets_meshes_and_rows_have_the_bits_of_numpy(many_ranks: Callable[..., tuple[int, str]]) -> None:
    status, printed = many_ranks()
    assert status == 0, printed
    assert "same bits: 4 checks" in printed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bit_of_one_rank_is_found_by_every_check(many_ranks: Callable[..., tuple[int, str]]) -> None:
    status, printed = many_ranks("--spoil")
    assert status != 0
    assert printed.count("FAILED: ") == 4 + 1, printed


def test_a_rank_that_fails_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    from local_ranks import LocalRanks, on_ranks

    ranks = LocalRanks(3, deadline_s=60)

    def work(rank: int) -> list[int]:
        if rank == 1:
            raise ValueError("no gradient")
        return ranks.exchange(rank, rank)

    start = time.monotonic()
    with pytest.raises((ValueError, threading.BrokenBarrierError)):
        on_ranks([ranks], 3, work)
    assert time.monotonic() - start < 30
