"""A server of its own for every attack, and what it counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from byteps_thc._cli.launch import ParameterServer


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with ParameterServer(stop_timeout_s=0.5) as running:
        yield running
