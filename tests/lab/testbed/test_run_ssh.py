"""`thc testbed` with hosts that are reached by ssh: OpenSSH's server on loopback."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_server import ALIAS, make_client, openssh_server, why_no_sshd
from testbed_runs import DEADLINE_S, await_line, is_alive, run, start_run, two_hosts, wait_until

from byteps_thc._scheme.errors import ConfigurationError, TransportError
from thc_lab.testbed.run import check

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_no_sshd() is not None, reason=str(why_no_sshd()))]
#: Words that a shell would take apart, or run.
WORDS = [
    "one  two",
    "$(touch hit)",
    "`touch hit`",
    "';touch hit;'",
    '";touch hit;"',
    "\ntouch hit\n",
    "\\;",
    "-x",
    "",
    "é",
]

SAY = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['WORDS'], os.listdir()]))"


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Port of a server that lets this process in as ALIAS."""
    with openssh_server(tmp_path) as port:
        monkeypatch.setenv("PATH", f"{make_client(tmp_path, port)}:{os.environ['PATH']}")
        yield port


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Python as a host has it: an ssh login brings none of this process's variables."""
    path = tmp_path / "bin/python3"
    path.parent.mkdir()
    path.write_text(
        f"#!/bin/sh\nexport PYTHONPATH='{os.pathsep.join(filter(None, sys.path))}'\nexec {sys.executable} \"$@\"\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.usefixtures("port")
def test_words_stay_words_and_failures_are_named(python: str) -> None:
    assert "[worker0] one" in run(two_hosts("echo one", ssh=ALIAS, python=python))
    plan = two_hosts("", ssh=ALIAS, python=python)
    say = [sys.executable, "-c", SAY]
    worker = dataclasses.replace(plan.processes[-1], argv=(*say, *WORDS), private=("WORDS",))
    lines = run(dataclasses.replace(plan, processes=(plan.processes[0], worker)), private={"WORDS": WORDS[1]})
    [line] = [line.removeprefix("[worker0] ") for line in lines if line.startswith("[worker0] ")]
    assert json.loads(line) == [WORDS, WORDS[1], []]
    with pytest.raises(TransportError, match=r"(?s)worker0 on second ended with exit status 9.*  no"):
        run(two_hosts("echo no; exit 9", ssh=ALIAS, python=python))


@pytest.mark.usefixtures("port")
@pytest.mark.parametrize("what", ["controller", "connection"])
def test_nothing_is_left_when_the_controller_or_the_connection_dies(what: str, python: str) -> None:
    plan = two_hosts("setsid sleep 600 & sleep 0.2; echo pids $PPID $$ $!; exec sleep 600", ssh=ALIAS, python=python)
    with start_run(plan) as running:
        agent, *pids = map(int, await_line(running, "[worker0] pids").split())
        assert all(map(is_alive, pids))
        if what == "controller":
            running.kill()
        else:
            client = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            os.kill(int(client[-1]), signal.SIGKILL)
        running.wait(DEADLINE_S)
    wait_until(lambda: not any(map(is_alive, [agent, *pids])))


def test_logins_that_fail_say_why(port: int, tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [problem, *more] = asyncio.run(check(two_hosts("true", ssh="nobody.invalid", python=python)))
    assert problem.startswith("the session with first ended: ssh: Could not resolve hostname nobody.invalid")
    assert len(more) == 1
    (tmp_path / "known_hosts").write_text("")
    with pytest.raises(ConfigurationError, match=r"first ended: .*Host key verification failed"):
        run(two_hosts("true", ssh=ALIAS, python=python))
    make_client(tmp_path, port)
    shutil.copy(tmp_path / "host_key", tmp_path / "user_key")
    with pytest.raises(ConfigurationError, match=r"first ended: .*Permission denied"):
        run(two_hosts("true", ssh=ALIAS, python=python))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TransportError, match="first: ssh cannot be started: No such file"):
        run(two_hosts("true", ssh=ALIAS, python=python))
