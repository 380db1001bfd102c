"""Who is given bits of requantized sums, and requantizes none, says so once."""

from __future__ import annotations

import logging

import pytest

from byteps_thc import Session, ThcConfig
from byteps_thc.tools.launch import ParameterServer


def test_a_session_says_once_that_servers_requantize_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with ParameterServer() as server, caplog.at_level(logging.WARNING, logger="byteps_thc"):
        for config in (
            ThcConfig(),
            ThcConfig(down_bits=None),
            ThcConfig(bits=5, down_bits=7),
            ThcConfig(total_bits=12),
        ):
            for _ in range(2):
                Session([server.address], job=1, worker=0, workers=1, config=config).close()
    said = "servers and switches requantize no sums and take no notice of "
    assert [record.message for record in caplog.records] == [
        f"{said}down_bits=7: codes have 5 bits",
        f"{said}total_bits=12: codes have 4 bits",
    ]
