"""Sessions over the DPDK back end: memif between processes, and af_packet on veth between network namespaces."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _core_test
import numpy as np
import pytest

from byteps_thc._cli.launch import ParameterServer, find_thc_ps
from byteps_thc._net.session import has_dpdk
from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.wire.layout import MessageType
from thc_lab.namespaces import Cable, CableEnd, Namespaces, command_inside, connect, inside

if TYPE_CHECKING:
    from raw_worker import MakeWorker

pytestmark = [
    pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK"),
    pytest.mark.skipif(os.geteuid() != 0, reason="DPDK without huge pages needs root here"),
]

IO_TEST = Path(__file__).parents[3] / "build/release/tests/io_test"
WORKERS = 2
COUNTS = [200_064, 1024, 64, 50_048]
EAL = ["--no-huge", "-m", "128", "--no-pci", "--no-telemetry"]
RATES = {"drop": 0.01, "duplicate": 0.01, "reorder": 0.01}
FAULT_FLAGS = ["--faults", "drop=0.01,duplicate=0.01,reorder=0.01"]


def expected_digest() -> str:
    """What every worker must print: the exact sums, computed here."""
    table = np.asarray(ThcConfig().resolve(WORKERS).table.values, np.uint8)
    generators = [np.random.default_rng(worker) for worker in range(WORKERS)]
    digest = hashlib.sha256()
    for count in COUNTS:
        total = np.zeros(count, np.uint8)
        for random in generators:
            codes = np.empty(count, np.uint8)
            _core_test.unpack(random.integers(0, 256, count // 2, np.uint8), codes, bits=4)
            total += table[codes]
        digest.update(total.tobytes())
    return digest.hexdigest()


def run_workers(
    server: str,
    dpdk: list[dict[str, Any]],
    faults: dict[str, float],
    prefix: list[list[str]],
    codes_per_packet: int = 1024,
) -> list[Any]:
    """Start all workers, each behind its command prefix; compare what they got, and return it."""
    script = str(Path(__file__).with_name("dpdk_worker.py"))
    with ExitStack() as stack:
        workers = []
        for worker in range(WORKERS):
            settings = {"server": server, "worker": worker, "workers": WORKERS, "counts": COUNTS}
            settings |= {"dpdk": dpdk[worker], "faults": faults, "codes_per_packet": codes_per_packet}
            command = [*prefix[worker], sys.executable, "-P", script, json.dumps(settings)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            workers.append(process)
        results = []
        for process in workers:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            results.append(next((json.loads(line) for line in lines if line.startswith("{")), None))
        for process in workers:
            process.communicate("\n", timeout=20)
            assert process.returncode == 0
    expected = expected_digest()
    for result in results:
        assert result is not None
        assert result["digest"] == expected
        assert result["counters"]["aggregate_received"] > 0
        if faults:
            assert result["counters"]["retransmissions"] > 0
    return results


def run_over_memif(
    tmp_path: Path,
    server_arguments: list[str],
    faults: bool,
    mtu_bytes: int = 1500,
    codes_per_packet: int = 1024,
) -> list[Any]:
    """The workers' results, with a server of one memif for each."""
    socket = tmp_path / "memif.sock"

    def devices(role: str, ids: range) -> list[str]:
        return [f"--vdev=net_memif{i},role={role},id={i},socket={socket},socket-abstract=no" for i in ids]

    def eal(name: str) -> list[str]:
        return [*EAL, f"--file-prefix=thc-test-{os.getpid()}-{name}"]

    arguments = ["--dpdk", "--eal-args", " ".join(eal("ps") + devices("server", range(WORKERS)))]
    if faults:
        arguments += FAULT_FLAGS
    arguments += ["--dpdk-mtu", str(mtu_bytes), *server_arguments]
    with ParameterServer(arguments, ip="198.18.0.1", port=48865) as server:
        dpdk = [
            {
                "local": f"198.18.0.{100 + w}",
                "eal_args": eal(f"w{w}") + devices("client", range(w, w + 1)),
                "mtu_bytes": mtu_bytes,
            }
            for w in range(WORKERS)
        ]
        return run_workers(server.address, dpdk, RATES if faults else {}, [[], []], codes_per_packet)


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
    run_over_memif(tmp_path, arguments, faults)


def test_jumbo_frames_over_memif(tmp_path: Path) -> None:
    """4096 bytes of codes a packet, and 8192 bytes of sums."""
    packets = sum(-(-count // 8192) for count in COUNTS)
    for result in run_over_memif(tmp_path, [], faults=False, mtu_bytes=9000, codes_per_packet=8192):
        sent = result["counters"]["codes_sent"] - result["counters"]["retransmissions"]
        assert sent == packets


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not IO_TEST.exists(), reason="scripts/cpp_tests.sh release builds io_test")
def test_closing_meets_no_handler_of_memif() -> None:
    """500 processes, three at a time beside one that computes: DPDK's interrupt thread comes in every order."""

    def close() -> int:
        command = [IO_TEST, "--gtest_filter=DpdkSetUpTest.*:DpdkQueuesTest.OneArp*-*GivesUp"]
        return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy, ThreadPoolExecutor(3) as pool:
        try:
            codes = [running.result() for running in [pool.submit(close) for _ in range(500)]]
        finally:
            busy.kill()
    assert codes == [0] * 500


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


@pytest.fixture
def veth_namespaces() -> Iterator[list[str]]:
    """Namespaces of server and workers, joined by a bridge in a namespace of its own. Each has eth0."""
    names = [f"thct{os.getpid()}{suffix}" for suffix in ("s", "a", "b")]
    bridge = f"thct{os.getpid()}br"
    with ExitStack() as stack:
        try:
            for name in (bridge, *names):
                ip("netns", "add", name)
                stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False, timeout=10)
            ip("-n", bridge, "link", "add", "br0", "type", "bridge")
            ip("-n", bridge, "link", "set", "br0", "up")
            for i, name in enumerate(names):
                ip("-n", bridge, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("-n", bridge, "link", "set", f"p{i}", "master", "br0", "up")
                ip("-n", name, "link", "set", "eth0", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield names


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("faults", [False, True], ids=["lossless", "faults"])
def test_af_packet_on_veth(
    veth_namespaces: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faults: bool,
    threads: int,
) -> None:
    """threads: of the server, which has a queue for each; the kernel deals the workers' frames to them by a hash."""
    server_namespace, *worker_namespaces = veth_namespaces

    def eal(name: str) -> list[str]:
        return [*EAL, f"--file-prefix=thc-test-{os.getpid()}-{name}", "--vdev=net_af_packet0,iface=eth0"]

    launcher = tmp_path / "thc-ps"
    launcher.write_text(f'#!/bin/sh\nexec ip netns exec {server_namespace} {find_thc_ps()} "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("THC_PS", str(launcher))
    arguments = ["--dpdk", "--eal-args", " ".join(eal("ps")), "--threads", str(threads)]
    if faults:
        arguments += FAULT_FLAGS
    with ParameterServer(arguments, ip="198.18.0.1", port=48865) as server:
        dpdk = [{"local": f"198.18.0.{100 + w}", "eal_args": eal(f"w{w}")} for w in range(WORKERS)]
        prefix = [["ip", "netns", "exec", name] for name in worker_namespaces]
        run_workers(server.address, dpdk, RATES if faults else {}, prefix)


def test_a_drain_serves_workers_whose_frames_are_handed_over(make_worker: MakeWorker) -> None:
    """All work for thread 1. By its hash the kernel deals the frames of about half of the workers to thread 0."""
    with Namespaces() as hosts:
        server_host, worker_host = hosts.add("ps"), hosts.add("w")
        worker_end = CableEnd(worker_host, "eth0", "02:00:00:00:00:02", "198.18.0.2/24")
        connect(Cable(CableEnd(server_host, "eth0", "02:00:00:00:00:01"), worker_end))
        eal = [*EAL, f"--file-prefix=thc-test-{os.getpid()}-ps", "--vdev=net_af_packet0,iface=eth0"]
        arguments = ["--dpdk", "--eal-args", " ".join(eal), "--threads", "2", "--drain-timeout", "60"]
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
                time.sleep(0.05)  # what takes half a second would be the end of the drain
            assert server.process.wait(timeout=10) == 0
