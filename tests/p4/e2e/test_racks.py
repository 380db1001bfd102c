"""Two racks, each behind a P4 program, below a thc-ps: workers get what one thc-ps gives them, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.racks import TwoRacks
from e2e.workers import Work, digest_of_thc_ps

from thc_lab.demo_switch.software_switch import SwitchChoice
from thc_lab.namespaces import Namespaces

#: Both programs at once.
CHOICES = (SwitchChoice("v1model", "model"), SwitchChoice("tna", "model"))


@pytest.fixture
def two_racks(namespaces: Namespaces, tmp_path: Path) -> Iterator[TwoRacks]:
    with ExitStack() as stack:
        yield TwoRacks(namespaces, CHOICES, tmp_path, stack)


def test_sums_although_packets_between_leaves_and_root_are_lost(two_racks: TwoRacks) -> None:
    """Partial sums, results and what the root says are lost and copied; workers' repetitions repair it all."""
    work = Work(("udp",) * 4, counts=(16 * 1024, 3 * 1024 + 77), steps=2)
    two_racks.start_root("--faults", "drop=0.05,duplicate=0.05,reorder=0.05")
    two_racks.start_leaves()
    with two_racks.start_workers(work) as workers:
        outcomes = workers.outcomes()
    expected = digest_of_thc_ps(4, work.counts, work.steps)
    assert [outcome.get("digest", outcome) for outcome in outcomes] == [expected] * 4
    assert sum(outcome["counters"]["retransmissions"] for outcome in outcomes) > 0


def test_a_restarted_worker_ends_the_others_of_all_racks(two_racks: TwoRacks) -> None:
    """Rounds of before cannot go on: all are told so, long before their deadline, and the new process is let in."""
    work = Work(("udp",) * 4, counts=(2048,), steps=10_000, operation_s=60.0)
    two_racks.start_root()
    two_racks.start_leaves()
    with two_racks.start_workers(work) as workers:
        assert workers.event(0) == {"step": 0}
        workers.processes[0].kill()
        killed_s = time.monotonic()
        with two_racks.start_workers(replace(work, operation_s=5.0), [0]) as again:
            outcomes = [workers.outcome(worker) for worker in (1, 2, 3)]
            took_s = time.monotonic() - killed_s
            alone = again.outcome(0)
    assert [outcome.get("error", outcome) for outcome in outcomes] == ["RestartError"] * 3
    assert took_s < 30.0
    assert alone["error"] == "DeadlineError", "it joined, and has nobody to add to"
