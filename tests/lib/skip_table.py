"""A plugin of pytest: a table of the reasons of skips (CI=true, .ci/run), and a time after which no test begins."""

import os
import time
from collections import Counter
from pathlib import Path

import pytest

TIME_IS_UP = "not run: the time was up (--end-at)"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--end-at", type=int, help="skip tests that would begin after this time (seconds since 1970)")
    parser.addoption(
        "--left-out",
        type=Path,
        help="begin with the test files that this file names, then write the skipped ones there",
    )


@pytest.hookimpl(trylast=True)  # after other orders
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    file = config.getoption("left_out")
    first = file.read_text().splitlines() if file else []
    ranks = {path: rank for rank, path in enumerate(first)}
    items.sort(key=lambda item: ranks.get(_file_of(item.nodeid), len(ranks)))


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    end_at = item.config.getoption("end_at")
    if end_at is not None and time.time() >= end_at:
        pytest.skip(TIME_IS_UP)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests each reason skipped, and the files with tests that came too late."""
    skipped = [
        (_file_of(report.nodeid), report.longrepr[2].removeprefix("Skipped: "))
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    ]
    if os.environ.get("CI") == "true":
        _print_table(terminalreporter, "skipped because", Counter(reason for _, reason in skipped))
    late = Counter(path for path, reason in skipped if reason == TIME_IS_UP)
    _print_table(terminalreporter, TIME_IS_UP, late)
    if file := terminalreporter.config.getoption("left_out"):
        file.write_text("".join(f"{path}\n" for path in late))


def _file_of(nodeid: str) -> str:
    return nodeid.split("::")[0]


def _print_table(terminalreporter: pytest.TerminalReporter, title: str, counts: Counter[str]) -> None:
    if counts:
        terminalreporter.section(title)
        for text, count in counts.most_common():
            terminalreporter.line(f"{count:5}  {text}")
