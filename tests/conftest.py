"""Fixtures for all Python tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from byteps_lab import why_not
from hypothesis import settings
from raw_worker import MakeWorker, Worker

from byteps_thc.tools.bfloat16 import do_without_amx_if_it_crashes
from byteps_thc.tools.launch import ParameterServer

# Hypothesis gives up after an example of 0.2 s, unless it knows that it runs on CI: any stall of the machine is one.
settings.register_profile("no deadline", settings.default, deadline=None)
settings.load_profile("no deadline")

_BFLOAT16 = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """BytePS takes minutes to build: `make test` leaves it and its tests to `make test-all`."""
    parser.addoption("--byteps", action="store_true", help="run tests that need BytePS, too (make byteps builds it)")


def pytest_configure(config: pytest.Config) -> None:
    """Once for all processes of the run, which have this one's environment."""
    if not hasattr(config, "workerinput"):  # which processes of pytest-xdist have
        config.stash[_BFLOAT16] = do_without_amx_if_it_crashes()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what the tests run with."""
    note = config.stash.get(_BFLOAT16, "")
    return [note] if note else []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs BytePS where it is not asked for, or not installed."""
    if item.get_closest_marker("byteps") is None:
        return
    if not item.config.getoption("byteps"):
        pytest.skip("needs BytePS: make test-all runs it, or pytest --byteps")
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def thc_ps() -> Iterator[ParameterServer]:
    """A thc-ps of this test's own on a free loopback port."""
    with ParameterServer() as server:
        yield server


@pytest.fixture
def make_worker() -> Iterator[MakeWorker]:
    """Make workers that speak the protocol by hand; closed in the end."""
    workers: list[Worker] = []

    def make(*args: object, **options: object) -> Worker:
        workers.append(Worker(*args, **options))  # type: ignore[arg-type]
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()
