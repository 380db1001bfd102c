"""A server that is silent is said once in the log, and again only after it has answered in between."""

import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from failover_workers import CONFIG

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._native import _core
from byteps_thc._net import session as session_module
from byteps_thc._net.session import SILENT_S, Session, SilenceLog, Timeouts


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "silent" in record.getMessage()]


def test_it_is_said_once_and_again_after_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    log, late = SilenceLog(["a:1", "b:2"], 600), SILENT_S + 1
    log.look([late, 0.0], [(late, 3), (late, 4)])  # b answers other questions, as inquiries
    log.look([late, 9.0], [(late, 3), (0.0, 0)])  # b is asked for nothing
    log.look([late + 60, 0.0], [(late + 60, 3), (0.0, 0)])
    assert [line[:37] for line in lines(caplog)] == ["server a:1 has been silent for 6.0 s:"]
    assert "its port 3" in lines(caplog)[0]
    assert "ends with DeadlineError after 600 s" in lines(caplog)[0]
    log.look([0.1, 0.0], [(late, 3), (0.0, 0)])
    log.look([late, 0.0], [(late, 3), (0.0, 0)])
    assert len(lines(caplog)) == 2


def test_a_stopped_server_is_named_while_a_worker_waits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "SILENT_S", 0.5)
    monkeypatch.setattr(session_module, "_LOOK_S", 0.05)
    arguments: dict[str, Any] = {"job": 1, "worker": 0, "workers": 1, "codes": CONFIG, "run": "test"}
    with (
        ParameterServer() as server,
        Session([server.address], timeouts=Timeouts(operation_s=60.0), **arguments) as session,
    ):
        count = session.codes_per_packet
        codes = np.zeros(_core.code_bytes(count, CONFIG.bits), np.uint8)

        def push() -> Any:
            return session.push_codes(0, codes, session.new_aggregate(count), np.zeros(1, np.uint8))

        for number in (1, 2):
            server.process.send_signal(signal.SIGSTOP)
            os.waitpid(server.process.pid, os.WUNTRACED)
            stage = push()
            deadline = time.monotonic() + 30
            while len(lines(caplog)) < number:
                assert not session.is_done(stage, 0.2)
                assert time.monotonic() < deadline
            assert not session.is_done(stage, 0.7)
            assert len(lines(caplog)) == number
            server.process.send_signal(signal.SIGCONT)
            session.wait(stage, 30)
    assert lines(caplog)[0].startswith(f"server {server.address} has been silent for ")
