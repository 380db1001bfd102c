"""The doctor's checks of sockets, servers, paths and ways, against real ones."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from network_or_skip import network_or_skip

from byteps_thc._cli.doctor.finding import Finding, State
from byteps_thc._cli.doctor.server import check_server, check_servers, parse_server
from byteps_thc._cli.doctor.sockets import check_port, check_socket_buffer
from byteps_thc._cli.doctor.way import Visit, Way
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.namespaces import inside
from thc_lab.shaped_network import Host, ShapedNetwork

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and `ip`"
)


def address_of(server: ParameterServer) -> tuple[str, int]:
    return parse_server(server.address)


def failure(visit: Visit) -> Finding:
    [finding] = check_server(visit)
    assert finding.fails
    return finding


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
    assert finding.state is State.OPTIONAL  # workers do not need it
    assert f"sport = :{port}" in finding.command


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
    assert server.meaning == "answers HELLO"
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
        Session([server.address], job=1, worker=0, workers=1, codes=ServerCodes()),
    ):
        finding = failure(Visit(address_of(server)))
    assert "the server takes no more jobs" in finding.meaning
    assert not finding.command  # the server answers: no firewall is to be opened


@contextmanager
def server_with_an_open_sum() -> Iterator[ParameterServer]:
    """Told to end it finishes a sum of two workers, one of whom is still missing, and lets nobody in."""
    with (
        ParameterServer(["--drain-timeout", "60"]) as server,
        Session([server.address], job=1, worker=0, workers=2, codes=ServerCodes()) as session,
    ):
        codes, aggregate = np.zeros(512, np.uint8), session.new_aggregate(1024)
        session.push_codes(0, codes, aggregate, np.zeros(1, np.uint8))
        deadline = time.monotonic() + 30
        while not session.counters()["incomplete_received"]:  # the server has the codes
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield server
        server.process.kill()


def test_a_server_that_shuts_down() -> None:
    with server_with_an_open_sum() as server:
        server.process.terminate()
        deadline = time.monotonic() + 30
        while (findings := check_server(Visit(address_of(server))))[0].state is State.OK:  # it lets workers in
            assert time.monotonic() < deadline
    [finding] = findings
    assert finding.fails
    assert "the server is shutting down" in finding.meaning


def test_a_port_that_nothing_listens_on(occupied_port: tuple[socket.socket, int]) -> None:
    other, port = occupied_port
    other.close()
    finding = failure(Visit(("127.0.0.1", port)))
    assert finding.meaning == "nothing listens on that port there, or a firewall rejects packets to it"
    assert f"thc-ps --port {port}" in finding.command


def test_a_program_that_does_not_answer(occupied_port: tuple[socket.socket, int]) -> None:
    other, port = occupied_port
    with other:
        finding = failure(Visit(("127.0.0.1", port)))
    assert "did not answer HELLO within 3.0 s" in finding.meaning
    assert f"thc-ps --port {port}" in finding.command


@needs_namespaces
def test_a_host_without_a_way_to_the_server() -> None:
    code = (
        "from byteps_thc._cli.doctor.server import check_server; from byteps_thc._cli.doctor.way import Visit; "
        "print(check_server(Visit(('10.0.0.1', 48865)))[0].meaning)"
    )
    command = ["unshare", "--net", sys.executable, "-P", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "the network has no path to it: Network is unreachable\n"


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
    assert server.meaning == "answers HELLO"
    assert path.meaning.startswith("16384 codes a packet") or path.meaning.startswith("16320 codes a packet")
    assert "Gb/s down" in way.meaning or "Mb/s down" in way.meaning


def test_a_key_of_the_environment(
    keyed_server: ParameterServer, key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THC_KEY_FILE", key_file)
    server, *_ = check_server(Visit(address_of(keyed_server), job=7))
    assert server.meaning == "answers HELLO"


def test_keys_that_are_missing(keyed_server: ParameterServer, key_file: str, tmp_path: Path) -> None:
    """No file, a file without the job, and a file that is not there."""
    address = address_of(keyed_server)
    assert "answers nobody without one: --key-file FILE" in failure(Visit(address)).command
    finding = failure(Visit(address, key_file))
    assert "keys for single jobs, and none for job" in finding.meaning
    assert "--job" in finding.command
    assert failure(Visit(address, str(tmp_path / "absent"))).command.startswith("(umask 077; thc key > FILE)")


def test_another_key_than_the_servers(keyed_server: ParameterServer, key_file: str) -> None:
    Path(key_file).write_text(f"7 {bytes(32).hex()}\n")
    assert "has it the same key" in failure(Visit(address_of(keyed_server), key_file, job=7)).meaning


def test_a_key_for_a_server_without(thc_ps: ParameterServer, key_file: str) -> None:
    assert "the same key for this job (or none" in failure(Visit(address_of(thc_ps), key_file, job=7)).meaning


def test_server_addresses() -> None:
    assert parse_server("127.0.0.1") == ("127.0.0.1", 48865)
    assert parse_server("localhost:9") == ("localhost", 9)
    assert [parse_server("[::1]"), parse_server("[::1]:9")] == [("[::1]", 48865), ("[::1]", 9)]


@pytest.mark.slow
@needs_namespaces
def test_a_switch_answers_with_a_refusal() -> None:
    command = [sys.executable, "-P", str(Path(__file__).with_name("switch_server.py"))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert "lets no unknown job in" in result.stdout, result.stdout
    assert "State.OK" in result.stdout


@needs_namespaces
@pytest.mark.parametrize(("mtu_bytes", "codes"), [(1500, 1024), pytest.param(1000, 896, marks=pytest.mark.slow)])
def test_a_path_that_is_narrower_than_the_routes_mtu_says(mtu_bytes: int, codes: int) -> None:
    """The hosts' interfaces have jumbo frames, the network between has not: large packets vanish."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("narrow_path.py")), str(mtu_bytes)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "lib")}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert "MTU differs along the path" in result.stdout, result.stdout
    assert f"{codes} codes a packet" in result.stdout
    assert f"THC_CONFIG=codes_per_packet={codes} " in result.stdout
    assert f"datagrams of {codes + 32} bytes" in result.stdout  # of the way, measured with packets that pass


def test_words_of_a_way() -> None:
    assert Way(50e6, 100e6, 0.3e-3, 0.0123, 1056, 36_000, 2.5e-3).describe() == (
        "100 Mb/s down with 50 Mb/s up, 1.2% of packets repeated, 300 us of round trip, 2.5 ms under load with 36 kB "
        "in flight, datagrams of 1056 bytes"
    )


def rate_bps(finding: Finding) -> float:
    found = re.match(r"([\d.]+) Mb/s down", finding.meaning)
    assert found, finding
    return float(found[1]) * 1e6


def test_rates_of_links() -> None:
    """Two servers, whose links carry 20 and 5 Mb/s: rates that any processor sends at, if it is not kept busy."""
    with network_or_skip(lambda: ShapedNetwork(3, "way")) as network:
        worker, *hosts = network.hosts
        for host, rate in zip(hosts, (20e6, 5e6), strict=True):
            host.shape(rate)

        def start(host: Host) -> ParameterServer:
            with inside(host.namespace):
                return ParameterServer(ip=host.ip)

        with start(hosts[0]) as fast, start(hosts[1]) as slow, inside(worker.namespace):
            servers = [Visit(parse_server(server.address)) for server in (fast, slow)]
            _, _, fast_way, _, _, slow_way = check_servers(servers)
    assert 0.4 * 20e6 < rate_bps(fast_way) < 20e6
    assert 0.4 * 5e6 < rate_bps(slow_way) < 5e6
