"""Packet tests run on every aggregator this machine has; the summary says on which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from switch_lab.jobs import Job
from switch_lab.lab import Lab
from switch_lab.targets.kinds import KINDS, Kind
from switch_lab.targets.target import Target

TESTS_ON: Counter[str] = Counter()
#: Name of the property with which a test says its aggregator: it may run in another process than the summary.
RAN_ON = "aggregator"


@cache
def why_missing(kind: Kind) -> str | None:
    return kind.why_missing()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`target` is any aggregator, `switch` one that runs a P4 program."""
    for fixture, kinds in (("target", KINDS), ("switch", [kind for kind in KINDS if kind.is_switch])):
        if fixture in metafunc.fixturenames:
            available = [kind for kind in kinds if why_missing(kind) is None]
            metafunc.parametrize(fixture, available, ids=[kind.name for kind in available], indirect=True)


@pytest.fixture(scope="session")
def target_of() -> Iterator[Callable[[Kind], Target]]:
    """Targets by kind, each made once."""
    targets: dict[str, Target] = {}

    def make(kind: Kind) -> Target:
        if kind.name not in targets:
            targets[kind.name] = kind.make()
        return targets[kind.name]

    yield make
    for target in targets.values():
        target.close()


@pytest.fixture
def target(request: pytest.FixtureRequest, target_of: Callable[[Kind], Target]) -> Target:
    request.node.user_properties.append((RAN_ON, request.param.name))
    return target_of(request.param)


@pytest.fixture
def switch(request: pytest.FixtureRequest, target_of: Callable[[Kind], Target]) -> Target:
    request.node.user_properties.append((RAN_ON, request.param.name))
    return target_of(request.param)


@pytest.fixture
def lab(target: Target) -> Lab:
    """A job of four workers that have joined."""
    return Lab(target, [Job.make(1, 4, target.front_ports)])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        TESTS_ON.update(value for name, value in report.user_properties if name == RAN_ON)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not TESTS_ON:
        return
    terminalreporter.section("aggregators under packet tests")
    for kind in KINDS:
        missing = why_missing(kind)
        ran = f"{TESTS_ON[kind.name]} tests" if missing is None else f"not here: {missing}"
        terminalreporter.write_line(f"{kind.name:10} {kind.what}: {ran}")
