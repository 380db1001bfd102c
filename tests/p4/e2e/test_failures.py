"""A worker or the switch dies in the middle: an error that says so, or the right sums, never wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from e2e.programs import one_program_or_slow
from e2e.workers import Work, digest_of_thc_ps, start_workers

pytestmark = pytest.mark.timeout(300)

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
def test_a_restarted_switch_sums_right_or_says_so(
    make_site: Callable[..., Any], start_switch: Callable[..., Any]
) -> None:
    work = Work(("udp", "udp"), counts=(2048, 1024), steps=20, operation_s=60.0)
    site = make_site(work)
    switch = start_switch(site)
    with start_workers(site, work) as workers:
        for step in range(3):
            assert workers.event(0) == {"step": step}
        switch.stop()
        start_switch(site)
        outcomes = workers.outcomes()
    expected = digest_of_thc_ps(len(work.backends), work.counts, work.steps)
    for outcome in outcomes:
        assert outcome.get("digest") == expected or outcome.get("error") == "RestartError", outcome
        assert "counters" not in outcome or outcome["counters"]["rejoins"] > 0
