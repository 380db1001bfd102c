"""Packet tests run on every aggregator this machine has; the summary says on which."""

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


def pytest_addoption(parser: pytest.Parser) -> None:
    names = [kind.name for kind in KINDS]
    parser.addoption("--aggregator", choices=names, help="packet tests on this one alone; an error where it is missing")


def wanted_kinds(config: pytest.Config) -> list[Kind]:
    # Without a default pytest knows no option of a conftest.py below the folder it was called with.
    name = config.getoption("--aggregator", default=None)
    return [kind for kind in KINDS if name in (None, kind.name)]


def pytest_configure(config: pytest.Config) -> None:
    """Raise if the only aggregator that was asked for is missing."""
    kinds = wanted_kinds(config)
    if len(kinds) == 1 and (missing := why_missing(kinds[0])) is not None:
        raise pytest.UsageError(f"no {kinds[0].name} ({kinds[0].what}) on this machine: {missing}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`target` is any aggregator, `switch` one that runs a P4 program."""
    kinds = [kind for kind in wanted_kinds(metafunc.config) if why_missing(kind) is None]
    for fixture, fitting in (("target", kinds), ("switch", [kind for kind in kinds if kind.is_switch])):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, fitting, ids=[kind.name for kind in fitting], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests out that have no aggregator, where one was asked for."""
    if len(wanted_kinds(config)) > 1:
        return
    others = [item for item in items if not {"target", "switch"} & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


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


def chosen(request: pytest.FixtureRequest, target_of: Callable[[Kind], Target]) -> Target:
    request.node.user_properties.append((RAN_ON, request.param.name))
    return target_of(request.param)


target = pytest.fixture(name="target")(chosen)
switch = pytest.fixture(name="switch")(chosen)


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
