"""Fixtures for tests of servers that disappear."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from byteps_thc._net.failover import watch


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers leave a server, and use it again, sooner."""
    monkeypatch.setattr(watch, "TICK_S", 0.05)
    monkeypatch.setattr(watch, "_FIRST_PAUSE_S", 0.2)
