"""Workers with real sessions get the same sums through a P4 program and through thc-ps, bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
from e2e.workers import Work, digest_of_thc_ps, start_workers

from byteps_thc._native._comm import has_dpdk
from thc_lab.demo_switch.software_switch import SwitchChoice

FAULTS = {"drop": 0.05, "duplicate": 0.05, "reorder": 0.05}
needs_dpdk = pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK")
#: For tests of other things than a program's sums: one program is enough for every run of the tests.
one_program_or_slow = pytest.mark.parametrize(
    "choice",
    [
        SwitchChoice("v1model", "model"),
        pytest.param(SwitchChoice("tna", "model"), marks=pytest.mark.slow),
        pytest.param(SwitchChoice("v1model", "bmv2"), marks=pytest.mark.slow),
    ],
    indirect=True,
    ids=lambda choice: f"{choice.program}-{choice.target}",
)


def run(work: Work, make_site: Callable[..., Any], start_switch: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return the workers' outcomes, which have the results of thc-ps."""
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


@one_program_or_slow
def test_workers_rejoin_a_restarted_switch_and_sum_right(
    make_site: Callable[..., Any], start_switch: Callable[..., Any]
) -> None:
    """Worker 0 waits for the sums of a step that worker 1 has not begun: no result is lost with the switch."""
    work = Work(("udp", "udp"), counts=(2048, 1024), steps=20, operation_s=60.0, pauses={1: 2})
    site = make_site(work)
    switch = start_switch(site)
    with start_workers(site, work) as workers:
        for step in range(3):
            assert workers.event(0) == workers.event(1) == {"step": step}
        switch.stop()
        start_switch(site)
        workers.resume(1)
        outcomes = workers.outcomes()
    expected = digest_of_thc_ps(len(work.backends), work.counts, work.steps)
    for outcome in outcomes:
        assert outcome.get("digest") == expected, outcome
        assert outcome["counters"]["rejoins"] > 0
