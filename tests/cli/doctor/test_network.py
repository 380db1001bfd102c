"""The doctor's checks of sockets, servers and paths, against real ones."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from byteps_thc._cli.doctor.finding import State
from byteps_thc._cli.doctor.hello import say_hello
from byteps_thc._cli.doctor.interfaces import _check_interface, _Interface, auto_codes_per_packet
from byteps_thc._cli.doctor.server import check_server, parse_server
from byteps_thc._cli.doctor.sockets import check_port, check_socket_buffer
from byteps_thc._cli.doctor.visit import Visit
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.wire.layout import ErrorReason

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and `ip`"
)


def address_of(server: ParameterServer) -> tuple[str, int]:
    host, port = server.address.split(":")
    return host, int(port)


@pytest.fixture
def occupied_port() -> tuple[socket.socket, int]:
    """A UDP port that a program has that does not speak THC."""
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    other.bind(("0.0.0.0", 0))
    return other, other.getsockname()[1]


def test_a_free_port(occupied_port: tuple[socket.socket, int]) -> None:
    other, port = occupied_port
    other.close()
    [finding] = check_port(port)
    assert (finding.state, finding.meaning) == (State.OK, "free: thc-ps can listen")


def test_a_port_that_another_program_has(occupied_port: tuple[socket.socket, int]) -> None:
    other, port = occupied_port
    with other:
        [finding] = check_port(port)
    assert finding.state is State.PROBLEM
    assert not finding.fails  # workers do not need it
    assert f"sport = :{port}" in finding.command


def test_a_port_where_thc_ps_answers(thc_ps: ParameterServer) -> None:
    [finding] = check_port(address_of(thc_ps)[1])
    assert (finding.state, finding.meaning) == (State.OK, "a thc-ps answers")


def test_a_socket_buffer_that_the_kernel_does_not_grant() -> None:
    """Not even root gets 2 GiB: the kernel counts in int."""
    wanted_bytes = (1 << 31) - 1
    [finding] = check_socket_buffer(wanted_bytes)
    assert finding.state is State.PROBLEM
    assert finding.command == f"sysctl -w net.core.rmem_max={wanted_bytes}"


def test_a_socket_buffer_that_the_kernel_grants() -> None:
    [finding] = check_socket_buffer(64 << 10)
    assert finding.state is State.OK


def test_a_server_and_its_path(thc_ps: ParameterServer) -> None:
    server, path, way = check_server(Visit(address_of(thc_ps)))
    assert server.state is State.OK
    assert "answers HELLO" in server.meaning
    assert path.state is State.OK
    assert path.meaning.startswith("16384 codes a packet")
    assert "the median of 50" in path.meaning
    assert way.state is State.OK
    assert "datagrams of 16416 bytes" in way.meaning


def test_the_doctor_leaves_no_job_behind() -> None:
    """A server for one job at a time: the second visit would be refused if the first were still there."""
    with ParameterServer(["--max-jobs", "1"]) as server:
        for _ in range(2):
            assert all(finding.state is State.OK for finding in check_server(Visit(address_of(server))))


def test_a_server_that_has_all_the_jobs_it_takes() -> None:
    with (
        ParameterServer(["--max-jobs", "1"]) as server,
        Session([server.address], job=1, worker=0, workers=1, config=ThcConfig()),
    ):
        [finding] = check_server(Visit(address_of(server)))
    assert finding.fails
    assert "takes no more jobs" in finding.meaning


@contextmanager
def server_with_an_open_sum() -> Iterator[ParameterServer]:
    """Told to end it finishes a sum of two workers, one of whom is still missing, and lets nobody in."""
    with (
        ParameterServer(["--drain-timeout", "60"]) as server,
        Session([server.address], job=1, worker=0, workers=2, config=ThcConfig()) as session,
    ):
        codes, aggregate = np.zeros(512, np.uint8), session.new_aggregate(1024)
        session.push_codes(0, codes, aggregate, np.zeros(1, np.uint8))
        deadline = time.monotonic() + 30
        while not session.counters()["incomplete_received"]:  # the server has the codes
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield server
        server.process.kill()


def terminate(server: ParameterServer) -> None:
    """Until it refuses workers."""
    server.process.terminate()
    deadline = time.monotonic() + 30
    while say_hello(address_of(server), deadline_s=10.0).refusal is not ErrorReason.DRAINING:
        assert time.monotonic() < deadline


def test_a_server_that_shuts_down() -> None:
    with server_with_an_open_sum() as server:
        terminate(server)
        [finding] = check_server(Visit(address_of(server)))
    assert finding.fails
    assert finding.meaning == "is shutting down"


def test_a_port_that_nothing_listens_on(occupied_port: tuple[socket.socket, int]) -> None:
    other, port = occupied_port
    other.close()
    [finding] = check_server(Visit(("127.0.0.1", port)))
    assert finding.fails
    assert "nothing listens" in finding.meaning
    assert f"thc-ps --port {port}" in finding.command


def test_a_port_that_answers_something_else(occupied_port: tuple[socket.socket, int]) -> None:
    other, port = occupied_port
    with other:
        echo = subprocess.Popen(
            [sys.executable, "-c", ECHO, str(other.fileno())], pass_fds=[other.fileno()], stdin=subprocess.PIPE
        )
        try:
            [finding] = check_server(Visit(("127.0.0.1", port)))
        finally:
            echo.kill()
            echo.communicate(timeout=10)
    assert finding.fails
    assert "no answer within" in finding.meaning


ECHO = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as echo:
    while True:
        datagram, sender = echo.recvfrom(65536)
        for answer in (datagram, b"", b"x" * 31, bytes(reversed(datagram)), bytes(64)):
            echo.sendto(answer, sender)
"""


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(f"7 {bytes(range(32)).hex()}\n")
    return str(path)


@pytest.fixture
def keyed_server(key_file: str) -> Iterator[ParameterServer]:
    """With a key for job 7."""
    with ParameterServer(["--key-file", key_file]) as server:
        yield server


def test_a_server_with_keys(keyed_server: ParameterServer, key_file: str) -> None:
    findings = check_server(Visit(address_of(keyed_server), key_file, job=7))
    assert [finding.state for finding in findings] == [State.OK] * 3
    server, path, way = findings
    assert server.meaning == "answers HELLO with this key"
    assert path.meaning.startswith("16384 codes a packet") or path.meaning.startswith("16320 codes a packet")
    assert "Gb/s down" in way.meaning or "Mb/s down" in way.meaning


def test_a_key_of_the_environment(
    keyed_server: ParameterServer, key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THC_KEY_FILE", key_file)
    server, *_ = check_server(Visit(address_of(keyed_server), job=7))
    assert server.meaning == "answers HELLO with this key"


def test_a_server_with_keys_and_a_doctor_without(keyed_server: ParameterServer) -> None:
    [finding] = check_server(Visit(address_of(keyed_server)))
    assert finding.fails
    assert f"thc doctor --server {keyed_server.address} --key-file FILE" in finding.meaning


def test_a_job_without_a_key(keyed_server: ParameterServer, key_file: str) -> None:
    [finding] = check_server(Visit(address_of(keyed_server), key_file))
    assert finding.fails
    assert "keys for single jobs, and none for job" in finding.meaning
    assert "--job" in finding.command


def test_another_key_than_the_servers(keyed_server: ParameterServer, key_file: str) -> None:
    Path(key_file).write_text(f"7 {bytes(32).hex()}\n")
    [finding] = check_server(Visit(address_of(keyed_server), key_file, job=7))
    assert finding.fails
    assert "has it the same key" in finding.meaning


def test_a_key_for_a_server_without(thc_ps: ParameterServer, key_file: str) -> None:
    [finding] = check_server(Visit(address_of(thc_ps), key_file, job=7))
    assert finding.fails
    assert finding.meaning == "serves without a key, and does not answer workers that have one"


def test_a_server_that_answers_from_another_address(thc_ps: ParameterServer) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        asked.bind(("127.0.0.1", 0))
        other.settimeout(10)

        def relay() -> None:
            while datagram := (message := asked.recvfrom(2048))[0]:
                other.sendto(datagram, address_of(thc_ps))
                other.sendto(other.recv(2048), message[1])

        thread = threading.Thread(target=relay)
        thread.start()
        try:
            [finding] = check_server(Visit(asked.getsockname()))
        finally:
            asked.sendto(b"", asked.getsockname())
            thread.join()
    assert finding.fails
    assert "an answer comes from another address" in finding.meaning


def test_server_addresses() -> None:
    assert parse_server("127.0.0.1") == ("127.0.0.1", 48865)
    assert parse_server("localhost:9") == ("127.0.0.1", 9)


@pytest.mark.parametrize(("mtu_bytes", "says"), [(1400, False), (1500, True), (9000, False)])
def test_nothing_is_suggested_that_the_path_may_not_take(mtu_bytes: int, says: bool) -> None:
    finding = _check_interface(_Interface("eth0", mtu_bytes, "up", "mlx5_core", "0000:3b:00.0", "25000"))
    assert (finding.state, finding.command) == (State.OK, "")
    assert ("8192 with jumbo frames, where all hosts and switches on the path have them" in finding.meaning) == says


@needs_namespaces
@pytest.mark.parametrize("mtu_bytes", [576, 1084, 1400, 9000])
def test_auto_codes_are_those_of_the_session(mtu_bytes: int) -> None:
    script = Path(__file__).with_name("loopback_session.py")
    inside = f"ip link set lo up mtu {mtu_bytes} && exec {sys.executable} -P {script}"
    command = ["unshare", "--net", "sh", "-c", inside]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(result.stdout.split()[-1]) == auto_codes_per_packet(mtu_bytes)


@needs_namespaces
def test_a_server_whose_mtu_is_too_small_for_the_default() -> None:
    code = (
        "from byteps_thc._cli.doctor.server import check_server; from byteps_thc._cli.launch import ParameterServer\n"
        "from byteps_thc._cli.doctor.visit import Visit\n"
        "with ParameterServer() as server:\n"
        "    host, port = server.address.split(':'); print(check_server(Visit((host, int(port)))))"
    )
    inside = f'ip link set lo up mtu 1000 && exec {sys.executable} -P -c "$1"'
    command = ["unshare", "--net", "sh", "-c", inside, "sh", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "takes no packets of 1024 codes" in result.stdout, result.stdout
    assert "required=True" in result.stdout


@pytest.mark.slow
@needs_namespaces
def test_a_switch_answers_with_a_refusal() -> None:
    script = Path(__file__).with_name("switch_server.py")
    result = subprocess.run(
        [sys.executable, "-P", str(script)], capture_output=True, text=True, timeout=200, check=True
    )
    assert "lets no unknown job in (unknown_job)" in result.stdout, result.stdout
    assert "State.OK" in result.stdout


@needs_namespaces
@pytest.mark.parametrize(("mtu_bytes", "codes"), [(1500, 1024), pytest.param(1000, 896, marks=pytest.mark.slow)])
def test_a_path_that_is_narrower_than_the_routes_mtu_says(mtu_bytes: int, codes: int) -> None:
    """The hosts' interfaces have jumbo frames, the network between has not: large packets vanish."""
    script = Path(__file__).with_name("narrow_path.py")
    result = subprocess.run(
        [sys.executable, "-P", str(script), str(mtu_bytes)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "lib")},
    )
    assert "MTU differs on the way" in result.stdout, result.stdout
    assert f"{codes} codes a packet" in result.stdout
    assert f"THC_CONFIG=codes_per_packet={codes} " in result.stdout
    assert f"datagrams of {codes + 32} bytes" in result.stdout  # of the way, measured with packets that pass


def interfaces_after(setup: str) -> dict[str, dict[str, str]]:
    """What check_interfaces finds in a new network namespace in which these commands were run."""
    code = (
        "import json; from byteps_thc._cli.doctor.interfaces import check_interfaces; "
        "print(json.dumps({f.check: {'state': f.state.value, 'meaning': f.meaning} for f in check_interfaces()}))"
    )
    # The kernel says a moment later that a link is up.
    settled = "for i in $(seq 500); do ip link show | grep -q 'state LOWERLAYERDOWN' || break; sleep 0.01; done"
    program = f'{setup} && {settled} && exec "$@"'
    command = ["unshare", "--net", "sh", "-c", program, "sh", sys.executable, "-P", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    findings: dict[str, dict[str, str]] = json.loads(result.stdout)
    return findings


@needs_namespaces
def test_a_host_without_a_network() -> None:
    assert interfaces_after("true")["network"]["state"] == "optional"


@needs_namespaces
def test_an_interface_that_is_too_small_for_the_default() -> None:
    findings = interfaces_after(
        "ip link add a0 type veth peer name b0 && ip link set a0 up mtu 1000 && ip link set b0 up"
    )
    assert findings["network a0"]["state"] == "problem"
    assert "1024, does not fit" in findings["network a0"]["meaning"]
    assert findings["network b0"]["state"] == "ok"
    assert "gives 1024" in findings["network b0"]["meaning"]


@needs_namespaces
def test_an_interface_without_a_cable() -> None:
    findings = interfaces_after("ip link add a0 type veth peer name b0 && ip link set a0 up")
    assert findings["network a0"]["state"] == "optional"
    assert "without carrier" in findings["network a0"]["meaning"]
    assert "network b0" not in findings
