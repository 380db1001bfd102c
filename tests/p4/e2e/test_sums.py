"""Workers with real sessions sum through a P4 program what they sum through thc-ps, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from e2e.programs import one_program_or_slow
from e2e.workers import Work, digest_of_thc_ps, start_workers

from byteps_thc._net.session import has_dpdk

FAULTS = {"drop": 0.05, "duplicate": 0.05, "reorder": 0.05}
needs_dpdk = pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK")


def run(work: Work, make_site: Callable[..., Any], start_switch: Callable[..., Any]) -> list[dict[str, Any]]:
    """What the workers say in the end; all of them got thc-ps's results."""
    site = make_site(work)
    start_switch(site)
    with start_workers(site, work) as workers:
        outcomes = workers.outcomes()
    expected = digest_of_thc_ps(len(work.backends), work.counts, work.steps)
    assert [outcome.get("digest", outcome) for outcome in outcomes] == [expected] * len(work.backends)
    return outcomes


@pytest.mark.parametrize(
    "backends",
    [
        pytest.param(("udp",) * 3, marks=pytest.mark.slow),
        pytest.param(("dpdk", "udp", "udp", "dpdk"), marks=needs_dpdk),
        pytest.param(("dpdk",) * 3, marks=[needs_dpdk, pytest.mark.slow]),
    ],
    ids="-".join,
)
def test_sums(backends: tuple[str, ...], make_site: Callable[..., Any], start_switch: Callable[..., Any]) -> None:
    run(Work(backends), make_site, start_switch)


@one_program_or_slow
@pytest.mark.parametrize(
    "backends", [("udp",) * 4, pytest.param(("dpdk", "udp"), marks=[needs_dpdk, pytest.mark.slow])], ids="-".join
)
def test_sums_despite_loss_duplication_and_reordering(
    backends: tuple[str, ...], make_site: Callable[..., Any], start_switch: Callable[..., Any]
) -> None:
    work = Work(backends, counts=(16 * 1024, 3 * 1024 + 77), faults=FAULTS)
    outcomes = run(work, make_site, start_switch)
    assert sum(outcome["counters"]["retransmissions"] for outcome in outcomes) > 0
