"""A worker dies: an error names it. The switch is restarted during a step: workers rejoin, and sums are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e.programs import one_program_or_slow
from e2e.workers import Work, digest_of_thc_ps, start_workers

ENDLESS = 10_000


@one_program_or_slow
def test_a_killed_worker_is_named_at_the_deadline(
    make_site: Callable[..., Any], start_switch: Callable[..., Any]
) -> None:
    work = Work(("udp", "udp"), counts=(2048,), steps=ENDLESS, operation_s=8.0)
    site = make_site(work)
    start_switch(site)
    with start_workers(site, work) as workers:
        assert workers.event(1) == {"step": 0}
        workers.processes[1].kill()
        outcome = workers.outcome(0)
    assert outcome["error"] == "DeadlineError"
    assert outcome["missing_workers"] == [1]


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
