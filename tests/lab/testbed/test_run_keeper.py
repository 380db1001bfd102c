"""The keeper on one host, as `thc testbed` talks to it: processes that outlive the command that starts them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thc_lab.testbed.hosts.local import LINE_LIMIT_BYTES
from thc_lab.testbed.keeper.following import MAX_LINE_BYTES
from thc_lab.testbed.keeper.records import TOKEN_VARIABLE, Records, new_record, pids_of

DEADLINE_S = 60.0
Ask = Callable[..., Any]


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    """Sends a request, and returns the answer's result; what is left is ended afterwards."""

    def send(command: str, **request: Any) -> Any:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "thc_lab.testbed.keeper", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
        ) as keeper:
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            limit = threading.Timer(DEADLINE_S, keeper.kill)
            limit.start()
            keeper.stdin.write(json.dumps({"folder": "test/host"} | request) + "\n")
            keeper.stdin.flush()  # and stays open: `watch` ends when nobody listens any more
            lines = [json.loads(line) for line in keeper.stdout]
            limit.cancel()
        assert keeper.returncode == 0
        if command == "watch":
            return lines
        (answer,) = lines
        assert "error" not in answer, answer["error"]
        return answer["result"]

    yield send
    send("stop", names=None, grace_s=0)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "byteps_thc/testbed/test/host")


def start(ask: Ask, name: str, script: str, **environment: str) -> Any:
    return ask("start", name=name, argv=["sh", "-c", script], environment=environment, cwd=None)


def await_state(ask: Ask, name: str, wanted: str) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        (found,) = [each for each in ask("list") if each["name"] == name]
        if found["state"] == wanted:
            return dict(found)
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_a_process_goes_on_and_is_started_once(ask: Ask) -> None:
    first = start(ask, "sleeper", "sleep 600")
    assert first["new"]
    again = start(ask, "sleeper", "sleep 600")
    assert again == {"pid": first["pid"], "new": False}
    assert ask("stop", names=["sleeper"], grace_s=10) == ["sleeper"]
    assert await_state(ask, "sleeper", "ended")["status"] == -signal.SIGTERM
    assert ask("stop", names=["sleeper"], grace_s=10) == []
    assert start(ask, "sleeper", "sleep 600")["new"]


def test_output_environment_and_exit_status(ask: Ask) -> None:
    start(ask, "speaker", 'echo "$WORD"; echo twice >&2; printf end; exit 3', WORD="once")
    events = ask("watch", names=["speaker"], follow=True, last_lines=None)
    lines = [{"name": "speaker", "line": line} for line in ("once", "twice", "end")]
    assert events == [*lines, {"name": "speaker", "ended": 3}]
    assert ask("tail", name="speaker", count=2) == ["twice", "end"]
    assert ask("watch", names=["speaker"], follow=False, last_lines=1) == lines[2:]


def test_ready_when_a_line_matches(ask: Ask) -> None:
    start(ask, "server", "echo on port 17; sleep 600")
    assert ask("wait", name="server", pattern=r"port \d+", timeout_s=DEADLINE_S) == {"ready": True}
    assert ask("wait", name="server", pattern="never", timeout_s=0.2) == {"ready": False}
    start(ask, "broken", "exit 4")
    assert ask("wait", name="broken", pattern="never", timeout_s=DEADLINE_S) == {"ready": False, "ended": 4}


def test_what_a_process_has_started_ends_with_it(ask: Ask, records: Records) -> None:
    # A daemon in a session of its own, which ignores SIGTERM: neither parent nor process group lead to it.
    start(ask, "launcher", "trap '' TERM; setsid sleep 600 & sleep 600")
    record = records.read("launcher")
    assert record is not None
    deadline = time.monotonic() + DEADLINE_S
    while len(pids_of(record)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ask("stop", names=["launcher"], grace_s=0.5)
    assert pids_of(record) == []


def test_a_process_that_ends_leaves_nothing_behind(ask: Ask, records: Records) -> None:
    start(ask, "launcher", "setsid sleep 600 & exit 5")
    assert await_state(ask, "launcher", "ended")["status"] == 5
    record = records.read("launcher")
    assert record is not None
    assert pids_of(record) == []


def test_a_number_that_another_process_has_now_is_not_touched(ask: Ask, records: Records) -> None:
    """As after a restart of the host, or of its process numbers."""
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            records.begin("worker0")
            own = new_record("worker0", bystander.pid, "0" * 32, ["sleep", "600"])
            records.write(dataclasses.replace(own, start_ticks=own.start_ticks - 1, supervisor_pid=2**22))
            assert await_state(ask, "worker0", "lost")["status"] is None
            assert ask("stop", names=None, grace_s=0) == []
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_a_killed_supervisor_takes_nothing_along(ask: Ask, records: Records) -> None:
    start(ask, "orphan", "sleep 600")
    record = records.read("orphan")
    assert record is not None
    os.kill(record.supervisor_pid, signal.SIGKILL)
    assert await_state(ask, "orphan", "running")["pid"] == record.pid
    assert ask("stop", names=["orphan"], grace_s=10) == ["orphan"]
    assert await_state(ask, "orphan", "lost")["status"] is None


def test_a_command_that_is_not_there(ask: Ask) -> None:
    with pytest.raises(AssertionError, match="No such file"):
        ask("start", name="nothing", argv=["/nowhere/thc-ps"], environment={}, cwd=None)


def test_files_are_removed_and_what_was_there_stays(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    new, kept = tmp_path / "new/deeper", tmp_path / "there"
    files = [
        {"host": "host", "path": str(new), "text": None, "mode": 0o700},
        {"host": "host", "path": str(new / "jobs.json"), "text": "{}", "mode": 0o600},
        {"host": "host", "path": str(kept / "jobs.json"), "text": "{}", "mode": 0o600},
    ]
    for _ in range(2):
        ask("put", files=files)
    (new / "result").touch()
    assert ask("read", path=str(new / "jobs.json")) == "{}"
    assert (new / "jobs.json").stat().st_mode & 0o777 == 0o600
    ask("remove")
    assert not (tmp_path / "new").exists()
    assert list(kept.iterdir()) == []


def test_a_folder_above_keeps_what_others_put_into_it(ask: Ask, tmp_path: Path) -> None:
    run = tmp_path / "new/run"
    ask("put", files=[{"host": "host", "path": str(run), "text": None, "mode": 0o700}])
    (run / "result").touch()
    (tmp_path / "new/data").write_text("another one's")
    ask("remove")
    assert not run.exists()
    assert (tmp_path / "new/data").read_text() == "another one's"


def test_a_trap_in_a_folder_of_all_is_refused(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AssertionError, match="not this user's"):
        ask("put", files=[{"host": "host", "path": str(tmp_path / "run"), "text": None, "mode": 0o700}])


def test_a_process_has_the_token_of_its_record(ask: Ask, records: Records) -> None:
    start(ask, "shower", f'echo "${TOKEN_VARIABLE}"')
    await_state(ask, "shower", "ended")
    record = records.read("shower")
    assert record is not None
    assert ask("tail", name="shower", count=1) == [record.token]
    assert len(record.token) == 32


def test_settings_of_the_login_do_not_reach_a_process(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("THC_CONFIG", "BYTEPS_LOG_LEVEL", "DMLC_ROLE", "PS_VERBOSE", "OTHER")
    for name in names:
        monkeypatch.setenv(name, "login")
    shown = " ".join(f"${{{name}-none}}" for name in names)
    start(ask, "shower", f'echo "{shown}"', DMLC_ROLE="planned")
    await_state(ask, "shower", "ended")
    assert ask("tail", name="shower", count=1) == ["none none planned none login"]


def test_a_process_that_has_lost_the_token_is_found_by_its_session(ask: Ask, records: Records) -> None:
    """As a program that overwrites its environment does."""
    start(ask, "titled", f"exec env -u {TOKEN_VARIABLE} sh -c 'sleep 600 & echo started; wait'")
    ask("wait", name="titled", pattern="started", timeout_s=DEADLINE_S)
    record = records.read("titled")
    assert record is not None
    assert len(pids_of(record)) == 2
    assert ask("stop", names=["titled"], grace_s=10) == ["titled"]
    assert pids_of(record) == []
    assert await_state(ask, "titled", "ended")["status"] == -signal.SIGTERM


def test_nothing_is_removed_while_a_process_runs(ask: Ask, records: Records) -> None:
    start(ask, "sleeper", "sleep 600")
    with pytest.raises(AssertionError, match="sleeper still run"):
        ask("remove")
    assert records.read("sleeper") is not None
    ask("stop", names=None, grace_s=10)
    ask("remove")
    assert not records.folder.exists()


def test_a_long_line_comes_in_pieces(ask: Ask) -> None:
    # JSON makes the most of a zero byte: six.
    count = 3 * MAX_LINE_BYTES + 5
    start(ask, "progress", f"head -c {count} /dev/zero; echo; echo; echo end")
    events = ask("watch", names=["progress"], follow=True, last_lines=None)
    lines = [event["line"] for event in events if "line" in event]
    *pieces, empty, end = lines
    assert (empty, end) == ("", "end")
    assert "".join(pieces) == "\0" * count
    assert max(len(json.dumps(event)) for event in events) < LINE_LIMIT_BYTES
