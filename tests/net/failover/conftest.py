"""What tests of servers that go have in common."""

from __future__ import annotations

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
    """A server is given up, and taken back, sooner."""
    monkeypatch.setattr(watch, "TICK_S", 0.05)
    monkeypatch.setattr(watch, "_FIRST_PAUSE_S", 0.2)
