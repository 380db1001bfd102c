"""`thc testbed` with hosts that are reached by ssh: real servers on loopback, asyncssh's and OpenSSH's."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_servers import ALIAS, asyncssh_server, make_home, make_keys, openssh_server, why_no_sshd
from testbed_runs import FIRST, SECOND, down, run, states, two_hosts, up

from byteps_thc.errors import TransportError
from thc_lab.testbed.check import check
from thc_lab.testbed.hosts.ssh import SshHost
from thc_lab.testbed.process import HostSetup, Plan, PlannedHost, SetupStep

pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install 'asyncssh>=2.18'")

SERVERS = {"asyncssh": asyncssh_server, "openssh": openssh_server}


@pytest.fixture(params=["asyncssh", pytest.param("openssh", marks=pytest.mark.slow)])
def port(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Port of a server that lets this process in as ALIAS."""
    if request.param == "openssh" and (reason := why_no_sshd()) is not None:
        pytest.skip(reason)
    make_keys(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with SERVERS[request.param](tmp_path) as port:
        monkeypatch.setenv("HOME", str(make_home(tmp_path, port)))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield port


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Python as a host has it: an ssh login brings none of this process's variables."""
    path = tmp_path / "bin/python3"
    path.parent.mkdir()
    paths = os.pathsep.join(part for part in sys.path if part)
    variables = f"PYTHONPATH='{paths}' XDG_STATE_HOME='{tmp_path}/remote'"
    path.write_text(f'#!/bin/sh\nexport {variables}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def ssh_plan(tmp_path: Path, python: str, *workers: str, setup: HostSetup | None = None) -> Plan:
    """A plan for two hosts, both behind the server."""
    plan = two_hosts(f"ssh{os.getpid()}", tmp_path, *workers, setup=setup)
    hosts = tuple(PlannedHost(name, ALIAS, python=python) for name in (FIRST, SECOND))
    return dataclasses.replace(plan, reach="ssh", hosts=hosts, cables=())


@pytest.mark.usefixtures("port")
def test_the_whole_life_of_a_testbed(tmp_path: Path, python: str) -> None:
    step = SetupStep(
        "touch", ("touch", f"{tmp_path}/touched"), ("test", "-e", f"{tmp_path}/touched"), ("rm", f"{tmp_path}/touched")
    )
    # Words that a shell would take apart.
    plan = ssh_plan(tmp_path, python, "echo 'one  two' \"$0\"; sleep 0.3", setup=HostSetup(FIRST, (step,)))
    lines: list[str] = []
    try:
        up(plan)
        assert states(plan)["server"][0] == "running"
        run(plan, lines)
        assert lines == ["[worker0] one  two sh"]
        failing = dataclasses.replace(
            plan,
            processes=(plan.processes[0], dataclasses.replace(plan.processes[1], argv=("sh", "-c", "echo no; exit 9"))),
        )
        with pytest.raises(TransportError, match=r"(?s)worker0 on second ended with exit status 9.*  no"):
            run(failing, [])
    finally:
        down(plan)
    assert not (tmp_path / "touched").exists()
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "remote").rglob("*.*")) == []
    assert list((tmp_path / "state").rglob("*.*")) == []


@pytest.mark.slow
@pytest.mark.usefixtures("port")
def test_check_looks_at_every_host(tmp_path: Path, python: str) -> None:
    plan = ssh_plan(tmp_path, python, "true")
    server, worker = plan.processes
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        busy = f"tcp:127.0.0.1:{taken.getsockname()[1]}"
        processes = (
            dataclasses.replace(server, listens=("tcp:127.0.0.1:0", busy)),
            dataclasses.replace(worker, argv=("thc-nothing",)),
        )
        hosts = (*plan.hosts, PlannedHost("third", "nobody.invalid", python=python))
        lines = asyncio.run(check(dataclasses.replace(plan, hosts=hosts, processes=processes)))
    found = {(line.host, line.what): line for line in lines}
    assert found["first", "byteps_thc"].verdict == "ok"
    assert found["first", "programs"].text == "sh"
    assert f"{busy}: Address already in use" in found["first", "ports"].text
    assert found["second", "programs"].text == "not there: thc-nothing"
    assert found["third", "ssh"].verdict == "problem"
    assert not any(line.what in ("keeper", "thc doctor") and line.verdict == "problem" for line in lines)


def test_a_host_that_is_not_reached_is_named(port: int, tmp_path: Path, python: str) -> None:
    plan = ssh_plan(tmp_path, python, "true")
    up(plan)
    home = make_home(tmp_path, port)
    known = home / ".ssh/known_hosts"
    right = known.read_text()
    try:
        known.write_text("")
        with pytest.raises(TransportError, match=f"(?s)not everything was taken down.*first.*ssh {ALIAS} true"):
            down(plan)
    finally:
        known.write_text(right)
        down(plan)


def test_a_login_that_is_refused_says_what_to_do(port: int, tmp_path: Path) -> None:
    import asyncssh

    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "other_key")
    make_home(tmp_path, port, key="other_key")
    with pytest.raises(TransportError, match=f"gpu0: {ALIAS} refuses the login.*ssh-copy-id {ALIAS}"):
        asyncio.run(SshHost.connect("gpu0", "python3", ALIAS))


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path)
    monkeypatch.setenv("HOME", str(make_home(tmp_path, 1)))
    with pytest.raises(TransportError, match=f"gpu0: {ALIAS} is not reached by ssh"):
        asyncio.run(SshHost.connect("gpu0", "python3", ALIAS))
