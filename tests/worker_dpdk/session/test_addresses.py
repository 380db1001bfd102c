"""Servers asked at any of their addresses, and found by name."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from joined_sessions import check_sums, next_job, sessions_at
from private_mounts import NO_MOUNTS, can_mount

from byteps_thc._cli.doctor.finding import State
from byteps_thc._cli.doctor.server import check_server
from byteps_thc._cli.doctor.way import Visit
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session, UdpConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """Yield the port of a thc-ps on all addresses of this host, which include 127.0.0.0/8."""
    with ParameterServer(ip="0.0.0.0") as server:
        yield server.address.partition(":")[2]


@pytest.fixture(scope="module")
def sharded_port() -> Iterator[str]:
    """The same with two packet threads."""
    with ParameterServer(["--threads", "2"], ip="0.0.0.0") as server:
        yield server.address.partition(":")[2]


@pytest.mark.parametrize("merged", [True, False])
def test_each_worker_uses_another_address_of_the_servers(port: str, sharded_port: str, merged: bool) -> None:
    config, backend = ServerCodes(), UdpConfig(gso=merged, gro=merged)
    servers = [[f"127.0.0.{2 + worker}:{port}", f"127.0.0.{7 - worker}:{sharded_port}"] for worker in range(3)]
    with ExitStack() as stack:
        joined = sessions_at(stack, servers, config, backend=backend)
        check_sums(joined, config, [1, 1024, 100_001])
        assert all(session.counters()["foreign"] == 0 for session in joined)


def test_the_doctor_asks_a_second_address(port: str) -> None:
    assert {finding.state for finding in check_server(Visit(("127.0.0.2", int(port))))} == {State.OK}


def test_servers_are_found_by_name(port: str) -> None:
    with Session([f"localhost:{port}"], job=next(next_job), worker=0, workers=1, codes=ServerCodes()) as session:
        assert session.addresses == [f"127.0.0.1:{port}"]
        assert session.inquiry()(5.0, 0.0) == ["there"]


NAMES = """
127.0.0.1 localhost
127.0.0.5 one.example both.example
::1 both.example
10.0.0.1 two.example
10.0.0.2 two.example
"""

#: Prints the errors of all ways to pass a server's address, by address.
SCRIPT = r"""
import json, os, signal, socket, subprocess, sys, time
from typer.testing import CliRunner
from byteps_thc import ServerCodes, NetworkConfig
from byteps_thc._base.errors import ThcError
from byteps_thc._cli.cli import app
from byteps_thc._cli.launch import find_thc_ps
from byteps_thc._net.session import Session, Timeouts

def error_of(server, limit_s=0.5):
    os.environ["THC_SERVERS"] = server
    network = NetworkConfig.from_environment()
    try:
        Session(network.servers, job=1, worker=0, workers=1, codes=ServerCodes(), timeouts=Timeouts(connect_s=limit_s))
    except ThcError as error:
        return type(error).__name__, str(error)

def thc_ps(*arguments):
    result = subprocess.run([find_thc_ps(), *arguments], capture_output=True, text=True, timeout=60)
    return result.returncode, result.stderr

said = {}
for server in ("one.example", "two.example", "[fe80::1]:5", "[::g]"):
    said[server] = {
        "session": error_of(server),
        "doctor": CliRunner().invoke(app, ["doctor", "--server", server]).stderr if server != "one.example" else "",
        "upstream": thc_ps("--upstream", server, "--rack", "0", "--racks", "0-0,1-1", "--threads", "16", "--port", "1")
            if server != "one.example" else "",
        "listen": thc_ps("--listen", server.removesuffix(":5")) if server != "one.example" else "",
    }
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # the only name server
silent.bind(("127.0.0.53", 53))
start = time.monotonic()
said["slow.example"] = {"session": error_of("slow.example"), "seconds": time.monotonic() - start}
start = time.monotonic()
said["both.example"] = {"session": error_of("both.example", 4), "seconds": time.monotonic() - start}

def interrupt(*_):
    raise InterruptedError

signal.signal(signal.SIGALRM, interrupt)
for server in ("slow.example", "both.example"):
    signal.setitimer(signal.ITIMER_REAL, 1)
    start = time.monotonic()
    try:
        error_of(server, 30)
    except InterruptedError:
        said[server]["interrupted"] = time.monotonic() - start
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run SCRIPT on a host with these names."""
    if not can_mount():
        pytest.skip(NO_MOUNTS)
    folder = tmp_path_factory.mktemp("etc")
    (folder / "hosts").write_text(NAMES)
    (folder / "resolv.conf").write_text("nameserver 127.0.0.53\noptions timeout:30\n")
    mounts = " && ".join(f'mount --bind "{folder}/{name}" /etc/{name}' for name in ("hosts", "resolv.conf"))
    inside = f'ip link set lo up && {mounts} && exec "$@"'
    command = ["unshare", "--net", "--mount", "sh", "-c", inside, "sh", sys.executable, "-P", "-c", SCRIPT]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    answers: dict[str, Any] = json.loads(result.stdout)
    return answers


def test_a_name_with_one_address_is_looked_up(said: dict[str, Any]) -> None:
    kind, message = said["one.example"]["session"]
    assert kind == "DeadlineError"
    assert "127.0.0.5:48865" in message  # where nobody is


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("two.example", '"two.example" has several addresses (10.0.0.1, 10.0.0.2)'),
        ("[fe80::1]:5", '"[fe80::1]" is a link-local address'),
        ("[::g]", '"[::g]" is no IPv6 address'),
    ],
)
def test_every_place_says_the_same_of_an_address(said: dict[str, Any], server: str, words: str) -> None:
    kind, message = said[server]["session"]
    assert kind == "ConfigurationError"
    code, upstream = said[server]["upstream"]
    listen_code, listen = said[server]["listen"]
    assert (code, listen_code) == (2, 2)
    for text in (message, said[server]["doctor"], upstream, listen):
        assert words in " ".join(text.split())


def test_connecting_ends_with_its_timeout_and_with_signals(said: dict[str, Any]) -> None:
    kind, message = said["slow.example"]["session"]
    assert kind == "DeadlineError"
    assert '"slow.example" was not looked up within' in message
    assert said["slow.example"]["seconds"] < 10
    assert said["both.example"]["session"][0] == "DeadlineError"
    assert said["both.example"]["seconds"] < 6
    assert max(said[server]["interrupted"] for server in ("slow.example", "both.example")) < 10
