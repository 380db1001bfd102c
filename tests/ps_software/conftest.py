"""A server for tests of thc-ps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from byteps_thc._cli.launch import ParameterServer


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with ParameterServer() as running:
        yield running
