"""Inquiries about the presence of servers, without joining."""

import time
from pathlib import Path

import pytest

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from byteps_thc._scheme.adding.server_codes import ServerCodes

KEY = bytes(range(32))


def test_servers_are_there_leave_and_are_gone() -> None:
    with ParameterServer() as first, ParameterServer(["--threads", "2"]) as second:
        with Session([first.address, second.address], job=1, worker=0, workers=1, codes=ServerCodes()) as session:
            ask = session.inquiry()
            assert ask(5.0, 0.0) == ["there", "there"]
            second.process.kill()
            second.process.wait()
            began = time.monotonic()
            assert ask(0.3, 0.0) == ["there", "silent"]
            assert time.monotonic() - began >= 0.3
            first.process.terminate()
            told = []  # thc-ps hears of the signal a moment later, and stays as long as its workers take to ask
            while not told or told[-1] != "silent":
                told.append(ask(0.2, 0.0)[0])
        assert "leaving" in told
        assert told == sorted(told, key=["there", "leaving", "silent"].index)
        assert first.process.wait(10) == 0
        assert ask(0.1, 0.0) == ["silent", "silent"]  # also when the session has ended


def test_a_server_with_a_key_answers_who_has_it(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(KEY.hex())
    key_file.chmod(0o600)
    with (
        ParameterServer(["--key-file", str(key_file)]) as server,
        Session([server.address], job=1, worker=0, workers=1, codes=ServerCodes(), key=KEY) as session,
    ):
        assert session.inquiry()(5.0, 0.0) == ["there"]
        with pytest.raises(ConfigurationError, match="timeout_s = nan is not a number of seconds"):
            session.inquiry()(float("nan"), 0.0)
