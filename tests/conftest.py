"""Fixtures for all Python tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from byteps_thc.launch import ParameterServer


@pytest.fixture
def thc_ps() -> Iterator[ParameterServer]:
    """A thc-ps of this test's own on a free loopback port."""
    with ParameterServer() as server:
        yield server
