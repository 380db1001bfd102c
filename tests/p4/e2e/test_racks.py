"""Two racks, each behind a P4 program, below a thc-ps: workers get the sums of one thc-ps, bit for bit."""

from collections.abc import Iterator
from contextlib import ExitStack
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
    """Partial sums, results and the root's messages are lost and copied; workers' repetitions repair all losses."""
    work = Work(("udp",) * 4, counts=(16 * 1024, 3 * 1024 + 77), steps=2)
    two_racks.start_root("--faults", "drop=0.05,duplicate=0.05,reorder=0.05")
    two_racks.start_leaves()
    with two_racks.start_workers(work) as workers:
        outcomes = workers.outcomes()
    expected = digest_of_thc_ps(4, work.counts, work.steps)
    assert [outcome.get("digest", outcome) for outcome in outcomes] == [expected] * 4
    assert sum(outcome["counters"]["retransmissions"] for outcome in outcomes) > 0
