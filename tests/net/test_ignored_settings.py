"""Who is given bits of averages, and sends none, says so once."""

from __future__ import annotations

import logging

import pytest

from byteps_thc import Session, ThcConfig
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._scheme.settings import warn_once


def test_a_session_says_once_that_servers_send_sums(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    with ParameterServer() as server, caplog.at_level(logging.WARNING, logger="byteps_thc"):
        for config in (ThcConfig(), ThcConfig(down_bits=None), ThcConfig(bits=5, down_bits=7)):
            for _ in range(2):
                Session([server.address], job=1, worker=0, workers=1, config=config).close()
    assert [record.message for record in caplog.records] == [
        "down_bits=7 has no effect on servers and switches: omit it"
    ]
