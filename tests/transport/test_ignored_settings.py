"""A session that is given bits of averages, which servers do not send, says so once."""

from __future__ import annotations

import logging

import pytest

from byteps_thc import Session, ThcConfig
from byteps_thc.tools.launch import ParameterServer


def test_a_session_says_once_that_down_bits_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    with ParameterServer() as server, caplog.at_level(logging.WARNING, logger="byteps_thc"):
        for config in (ThcConfig(), ThcConfig(bits=5, down_bits=7)):
            for _ in range(2):
                Session([server.address], job=1, worker=0, workers=1, config=config).close()
    assert [record.message for record in caplog.records] == [
        "down_bits=7 has no effect on servers and switches: omit it"
    ]
