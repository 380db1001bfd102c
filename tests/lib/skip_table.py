"""A plugin of pytest: a table of the reasons of skips, and a time after which no test begins.

CI=true prints the table (.ci/run).
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

TIME_IS_UP = "not run: the time was up (--end-at)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --end-at."""
    parser.addoption("--end-at", type=int, help="skip tests that would begin after this time (seconds since 1970)")


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that comes too late."""
    end_at = item.config.getoption("end_at")
    if end_at is not None and time.time() >= end_at:
        pytest.skip(TIME_IS_UP)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests each reason skipped, and the files with tests that came too late."""
    skipped = [
        (report.nodeid.split("::")[0], report.longrepr[2].removeprefix("Skipped: "))
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    ]
    if os.environ.get("CI") == "true":
        _print_table(terminalreporter, "skipped because", Counter(reason for _, reason in skipped))
    _print_table(terminalreporter, TIME_IS_UP, Counter(path for path, reason in skipped if reason == TIME_IS_UP))


def _print_table(terminalreporter: pytest.TerminalReporter, title: str, counts: Counter[str]) -> None:
    if counts:
        terminalreporter.section(title)
        for text, count in counts.most_common():
            terminalreporter.line(f"{count:5}  {text}")
