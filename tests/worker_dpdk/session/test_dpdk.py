"""Sessions over the DPDK back end: memif between processes, and af_packet on veth between network namespaces."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e.workers import EAL, Work, Workers, digest_of_thc_ps
from network_or_skip import network_or_skip

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._native._comm import has_dpdk
from thc_lab.namespaces import Cable, CableEnd, Namespaces, bridge, command_inside, connect, inside
from thc_switch.wire import MessageType

if TYPE_CHECKING:
    from raw_worker import MakeWorker

pytestmark = [
    pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK"),
    pytest.mark.skipif(os.geteuid() != 0, reason="DPDK without huge pages needs root here"),
]

#: Names of namespaces.
Hosts = list[str]
IO_TEST = Path(__file__).parents[3] / "build/release/tests/io_test"
WORKERS = 2
COUNTS = (200_064, 1024, 64, 50_048)
RATES = {"drop": 0.01, "duplicate": 0.01, "reorder": 0.01}
FAULT_FLAGS = ["--faults", "drop=0.01,duplicate=0.01,reorder=0.01"]


def eal(name: str, *devices: str) -> list[str]:
    """EAL arguments of a process with these devices."""
    return [*EAL, f"--file-prefix=thc-test-{os.getpid()}-{name}", *(f"--vdev={device}" for device in devices)]


def check_sums(server_devices: list[str], devices: list[str], arguments: list[str], faults: bool, hosts: Hosts) -> None:
    """Let workers with one device each sum over a thc-ps; their results equal results over kernel UDP.

    hosts: namespaces of the server and of the workers; empty: all run in the current one.
    """
    command = ["--dpdk", "--eal-args", " ".join(eal("ps", *server_devices)), *arguments]
    command += FAULT_FLAGS if faults else []
    work = Work(("dpdk",) * WORKERS, counts=COUNTS, faults=RATES if faults else {})
    prefix = command_inside(hosts[0]) if hosts else []
    with ParameterServer(command, prefix=prefix, ip="198.18.0.1", port=48865) as server:
        backends = [
            {"dpdk": {"local": f"198.18.0.{100 + worker}", "eal_args": eal(f"w{worker}", device)}}
            for worker, device in enumerate(devices)
        ]
        settings = [work.settings(worker, server.address, backend) for worker, backend in enumerate(backends)]
        with Workers(settings, hosts[1:]) as workers:
            outcomes = workers.outcomes()
    assert [outcome.get("digest", outcome) for outcome in outcomes] == [digest_of_thc_ps(WORKERS, COUNTS, 1)] * WORKERS
    assert not faults or all(outcome["counters"]["retransmissions"] > 0 for outcome in outcomes)


@pytest.mark.parametrize("keyed", [False, True], ids=["no key", "key"])
@pytest.mark.parametrize("faults", [False, True], ids=["lossless", "faults"])
def test_memif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: bool, keyed: bool) -> None:
    arguments = []
    if keyed:
        key_file = tmp_path / "key"
        key_file.touch(0o600)
        key_file.write_text("5a" * 32)
        arguments = ["--key-file", str(key_file)]
        monkeypatch.setenv("THC_KEY_FILE", str(key_file))

    def devices(role: str) -> list[str]:
        socket = tmp_path / "memif.sock"
        return [f"net_memif{i},role={role},id={i},socket={socket},socket-abstract=no" for i in range(WORKERS)]

    check_sums(devices("server"), devices("client"), arguments, faults, [])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not IO_TEST.exists(), reason="scripts/cpp_tests.sh release builds io_test")
def test_closing_meets_no_handler_of_memif() -> None:
    """4,800 closings by 100 processes, three at a time beside one that computes: EAL's thread comes in every order."""

    def close() -> int:
        command = [IO_TEST, "--gtest_filter=DpdkSetUpTest.*:DpdkQueuesTest.OneArp*-*GivesUp"]
        return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy, ThreadPoolExecutor(3) as pool:
        try:
            codes = [running.result() for running in [pool.submit(close) for _ in range(100)]]
        finally:
            busy.kill()
    assert codes == [0] * 100


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Namespaces of a server and of workers, joined by a bridge in a fourth. Each has eth0 without an address."""
    with network_or_skip(Namespaces) as namespaces:
        middle, *hosts = (namespaces.add(name) for name in ("bridge", "ps", *(f"w{w}" for w in range(WORKERS))))
        ports = [CableEnd(middle, f"port{number}", f"02:00:00:00:01:{number:02x}") for number in range(len(hosts))]
        for number, (host, port) in enumerate(zip(hosts, ports, strict=True)):
            connect(Cable(CableEnd(host, "eth0", f"02:00:00:00:00:{number:02x}"), port))
        bridge(middle, [port.interface for port in ports])
        yield hosts


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("faults", [False, True], ids=["lossless", "faults"])
def test_af_packet_on_veth(hosts: Hosts, faults: bool, threads: int) -> None:
    """The server has a queue for each of its threads; the kernel deals the frames of workers to them by a hash."""
    device = "net_af_packet0,iface=eth0"
    check_sums([device], [device] * WORKERS, ["--threads", str(threads)], faults, hosts)


def test_a_drain_serves_workers_whose_frames_are_handed_over(make_worker: "MakeWorker") -> None:
    """All work for thread 1. By its hash the kernel deals the frames of about half of the workers to thread 0."""
    with Namespaces() as hosts:
        server_host, worker_host = hosts.add("ps"), hosts.add("w")
        worker_end = CableEnd(worker_host, "eth0", "02:00:00:00:00:02", "198.18.0.2/24")
        connect(Cable(CableEnd(server_host, "eth0", "02:00:00:00:00:01"), worker_end))
        eal_args = " ".join(eal("ps", "net_af_packet0,iface=eth0"))
        arguments = ["--dpdk", "--eal-args", eal_args, "--threads", "2", "--drain-timeout", "60"]
        with ParameterServer(arguments, prefix=command_inside(server_host), ip="198.18.0.1", port=48865) as server:
            with inside(worker_host):
                workers = [make_worker(server.address, 0, 1, job=job, source_ip="198.18.0.2") for job in range(1, 9)]
            for worker in workers:
                worker.join()
            slot = workers[0].shape.norm_slots | 1
            for round in range(1, 11):
                for worker in workers:
                    worker.send_codes([1] * 64, slot=slot, round=round)
                for worker in workers:
                    assert worker.receive(timeout_s=5).header.message_type == MessageType.AGGREGATE
                if round == 1:
                    server.process.terminate()
                time.sleep(0.05)  # a pause of half a second would end the drain
            assert server.process.wait(timeout=10) == 0
