"""The program around the protocol: flags, files, metrics, signals."""

import re
import resource
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from free_ports import free_tcp_port
from scraped_metrics import scrape, scrape_with

from byteps_thc._cli.launch import ParameterServer, find_thc_ps
from thc_switch.wire import ConfigField, ErrorReason, Header, MessageType

if TYPE_CHECKING:
    from raw_worker import MakeWorker, Worker

PS_SOFTWARE = Path(__file__).parents[2] / "ps_software"
#: Limit of events that happen at once, unless the machine stalls.
SOON_S = 30.0
RACK_0 = ["--upstream", "10.0.0.9", "--rack", "0"]
#: longer than any test waits: the server ends because nobody waits for anything
ENDLESS_DRAIN = ["--drain-timeout", "3600"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(find_thc_ps()), *arguments], capture_output=True, text=True, timeout=SOON_S, check=False)


def test_help_and_version() -> None:
    result = run("--help")
    assert result.returncode == 0
    for option in ("--listen", "--threads", "--metrics-port", "--dpdk", "--config", "--drain-timeout"):
        assert option in result.stdout
    assert re.fullmatch(r"thc-ps \d+\.\d+\.\d+\n", run("--version").stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "10.0.0"], '--listen: "10.0.0" is neither an address nor a name'),
        (["--threads", "0"], "--threads"),
        (["--config", "/absent.toml"], "absent.toml"),
        (["--faults", "drop=1.5"], "--faults: drop: '1.5' is not a number from 0 to 1"),
        (["--faults", "seed=1,reorder=nan"], "--faults: reorder: 'nan' is not a number from 0 to 1"),
        (["--faults", "drop"], "--faults: drop: '' is not a number from 0 to 1"),
        (["--faults", "lose=0.1"], "--faults: 'lose' is none of drop, duplicate, reorder, rounds-per-epoch and seed"),
        (["--idle-timeout", "nan"], "--idle-timeout: 'nan' is not a number from 0.001 to 1e+06"),
        (["--drain-timeout", "-NaN"], "--drain-timeout: '-NaN' is not a number from"),
        (["--max-memory", "-1"], "--max-memory: Value -1 is not a positive size, such as 64MiB"),
        (["--max-memory", "0"], "--max-memory: Value 0 is not a positive size"),
        (["--rcvbuf", "-1"], "--rcvbuf: Value -1 is not a positive size"),
        (["--slots", "abc"], "--slots: 'abc' is not a whole number from 2 to 1048576, nor auto"),
        (["--slots", "1"], "--slots: '1' is not a whole number from 2 to 1048576, nor auto"),
        (["--faults", "drop=0.6,reorder=0.6"], "--faults: drop, duplicate and reorder are more than 1 together"),
        (["--dpdk"], "--listen"),
        (["--dpdk", "--listen", "10.0.0.9", "--dpdk-neighbour", "10.0.0.1"], "--dpdk-neighbour: takes IP=MAC"),
        (["--dpdk", "--dpdk-neighbour", "10.0.0.1=02:00"], "--dpdk-neighbour: takes IP=MAC"),
        (["--no-such-flag"], "not expected: --no-such-flag\nRun with --help"),
        (["48865"], "not expected: 48865\n"),
        (["--port", "99999"], "--port: '99999' is not a whole number from 0 to 65535"),
        (["--metrics-port", "-1"], "--metrics-port"),
        (["--faults", "seed=-3"], "--faults: seed: "),
        (["--eal-args", "-a 0000:3b:00.0"], "--eal-args requires --dpdk"),
        (["--dpdk-mtu", "9000"], "--dpdk-mtu requires --dpdk"),
        (["--upstream", "10.0.0.9"], "--upstream requires --rack"),
        (["--rack", "0", "--racks", "0-3,4-7"], "--rack requires --upstream"),
        ([*RACK_0, "--racks", "0-7"], "--rack is the number of this server's rack among those of --racks"),
        ([*RACK_0, "--racks", "0-3,5-7"], "rack 1 must begin with worker 4, not 5"),
        ([*RACK_0, "--racks", "0-3,4-x"], "'4-x' is not a rack"),
        (["--upstream", "the root", "--rack", "0", "--racks", "0-3,4-7"], "is neither an address nor a name"),
        (["--upstream", "10.0.0.9:0", "--rack", "0", "--racks", "0-3,4-7"], "address and port must not be 0"),
        (
            ["--upstream", "127.0.0.1", "--listen", "127.0.0.1", "--rack", "0", "--racks", "0-3,4-7"],
            "this is the server's own address",
        ),
    ],
)
def test_bad_flags_are_explained(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr


@pytest.mark.parametrize(("arguments", "slots"), [([], 4096), (["--slots", "auto", "--max-memory", "64MiB"], 1024)])
def test_slots_follow_the_memory(arguments: list[str], slots: int, make_worker: "MakeWorker") -> None:
    """4096 slots of packets of 1024 codes are 8.7 MB, 2048 more than the 4 MiB that each of 16 jobs has of 64."""
    with ParameterServer(["--threads", "3", *arguments]) as server:
        assert make_worker(server.address, 0, codes_per_packet=1024).join().slots == slots


@pytest.mark.parametrize(
    ("arguments", "level", "line"),
    [
        (
            [],
            "info",
            "a job has 4096 slots of packets of 1024 codes, 2048 of 8192, 1024 of 16384 (--slots auto: 64 MiB for each "
            "job, --max-memory divided by --max-jobs)",
        ),
        (
            ["--max-memory", "20KiB"],
            "warning",
            "a job of packets of 1024 codes has no room here: its 16 slots take 34 KiB; raise --max-memory to that or "
            "more",
        ),
        (
            ["--max-memory", "1MiB", "--slots", "8192", "--threads", "2"],
            "warning",
            "a job of packets of 1024 codes has no room here: its 8192 slots take 17 MiB; raise --max-memory to that "
            "or more, or lower --slots",
        ),
    ],
)
def test_the_log_says_what_the_memory_is_enough_for(
    arguments: list[str], level: str, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with ParameterServer(arguments):
        pass
    log = capfd.readouterr().err
    assert f"[{level}] {line}\n" in log
    assert ("for each job" in log) is (level == "info")


def test_enough_memory_for_a_job_is_what_the_warning_says(capfd: pytest.CaptureFixture[str]) -> None:
    with ParameterServer(["--max-memory", "34KiB", "--max-jobs", "1"]):
        pass
    assert "[warning]" not in capfd.readouterr().err


def test_jobs_that_find_no_room_are_logged(make_worker: "MakeWorker", capfd: pytest.CaptureFixture[str]) -> None:
    with ParameterServer(["--max-memory", "20KiB", "--threads", "2"]) as server:
        for _ in range(2):
            reply = make_worker(server.address, 0, workers=1, job=5, codes_per_packet=1024).say_hello()
            assert reply.reason == ErrorReason.TOO_MANY_JOBS
    with ParameterServer(["--max-jobs", "1"]) as server:
        make_worker(server.address, 0, workers=1, job=5).join()
        reply = make_worker(server.address, 0, workers=1, job=6).say_hello()
        assert reply.reason == ErrorReason.TOO_MANY_JOBS
    assert logged_jobs(capfd) == [
        "job 5 refused: its 16 slots take 34 KiB, and 20 KiB of --max-memory are left; raise it, or lower --slots",
        "job 5 started: 1 worker, 4096 slots",
        "job 6 refused: --max-jobs or --max-jobs-per-address is reached; raise it",
        "job 5 ended: the server stops",
    ]


def test_flags_win_over_the_file(tmp_path: Path, make_worker: "MakeWorker") -> None:
    config = tmp_path / "thc-ps.toml"
    config.write_text('slots = 8\nthreads = 2\nlog-level = "warning"\nmax-memory = "1MiB"\n')
    with ParameterServer(["--config", str(config), "--threads", "1"]) as server:
        shape = make_worker(server.address, 0).join()
        assert (shape.slots, shape.shards) == (8, 1)


@pytest.mark.parametrize("racks", ['"0-1,2-3"', '["0-1", "2-3"]'])
def test_a_rack_in_the_file(racks: str, tmp_path: Path, make_worker: "MakeWorker", thc_ps: ParameterServer) -> None:
    config = tmp_path / "thc-ps.toml"
    config.write_text(f'upstream = "{thc_ps.address}"\nrack = 1\nracks = {racks}\n')
    with ParameterServer(["--config", str(config)]) as server:
        stranger = make_worker(server.address, 0, workers=4).say_hello()
        assert (stranger.reason, stranger.error.field) == (ErrorReason.BAD_CONFIG, ConfigField.WORKER_ID)
        own = make_worker(server.address, 2, workers=4)
        own.send_hello()
        assert own.receive().header.message_type == MessageType.CHALLENGE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 0\nno-such-key = 1\n", "line 2: unknown key 'no-such-key'"),
        ("\nprot = 3\n", "thc-ps.toml, line 2: unknown key 'prot'; keys are the long names of options"),
        ("threads = 2.5\n", "--threads: '2.5' is not a whole number from 1 to 256"),
        ("[dpdk]\nmtu = 9000\n", "line 1: [dpdk] is a table"),
        ("[[dpdk]]\nmtu = 9000\n", "[dpdk] is a table"),
        ('port = "x"\n', "--port: 'x' is not a whole number from 0 to 65535"),
        ("dpdk-mtu = 9000\n", "--dpdk-mtu requires --dpdk"),
        ("threads = 0\n", "--threads"),
        ("threads = \n", "line 1"),
    ],
)
def test_bad_files_are_explained(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "thc-ps.toml"
    config.write_text(text)
    result = run("--config", str(config))
    assert result.returncode == 2
    assert message in result.stderr


def test_a_folder_in_place_of_the_key_file(tmp_path: Path) -> None:
    result = run("--key-file", str(tmp_path))
    assert result.returncode == 1
    assert "not a regular file: pass the path of a file with keys" in result.stderr


def test_metrics_port_in_use() -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = str(occupied.getsockname()[1])
        result = run("--listen", "127.0.0.1", "--port", "0", "--metrics-port", port)
    assert result.returncode == 1
    assert "--metrics-port" in result.stderr


def test_threads_that_cannot_start_are_explained() -> None:
    def limit_memory() -> None:  # to a few thread stacks
        resource.setrlimit(resource.RLIMIT_STACK, (256 << 20, 256 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    def run_limited(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(find_thc_ps()), *arguments]
        return subprocess.run(
            command, preexec_fn=limit_memory, capture_output=True, text=True, timeout=SOON_S, check=False
        )

    if run_limited("--version").returncode != 0:
        pytest.skip("a build with sanitizers needs more address space")
    result = run_limited("--listen", "127.0.0.1", "--port", "0", "--threads", "8")
    assert result.returncode == 1
    assert "--threads" in result.stderr


def test_messages_before_the_ready_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "thc-ps"
    program.write_text("#!/bin/sh\nprintf 'a driver says hello\\nthc-ps ready on 127.0.0.1:7\\n'\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("THC_PS", str(program))
    with ParameterServer() as server:
        assert server.address == "127.0.0.1:7"


def test_metrics(make_worker: "MakeWorker") -> None:
    port = free_tcp_port()
    with ParameterServer(["--metrics-port", str(port), "--threads", "2"]) as server:
        workers = [make_worker(server.address, i, workers=2, job=5) for i in range(2)]
        for worker in workers:
            worker.join()
        for worker in workers:
            worker.send_codes([1])
        for worker in workers:
            worker.receive()
        workers[0].send_codes([1])
        workers[0].receive()
        workers[0].send_bytes(b"garbage")
        garbage = '\nthc_ps_dropped_packets_total{job="none",reason="version"} 1\n'
        text = scrape_with(garbage, port)
    assert '\nthc_ps_completed_total{job="5"} 1\n' in text
    assert '\nthc_ps_replays_total{job="5"} 1\n' in text
    assert '\nthc_ps_workers{job="5"} 2\n' in text
    assert "\nthc_ps_jobs 1\n" in text
    assert garbage in text
    assert '\nthc_ps_errors_sent_total{job="5",reason="unknown_job"} 0\n' in text
    names = set(re.findall(r"^(thc_ps_\w+)", text, re.MULTILINE))
    assert names == set(re.findall(r"^# TYPE (thc_ps_\w+) (?:counter|gauge)$", text, re.MULTILINE))
    assert names == set(re.findall(r"^# HELP (thc_ps_\w+) \S", text, re.MULTILINE))
    assert_documented(names)


def test_metrics_of_a_quorum(make_worker: "MakeWorker") -> None:
    port = free_tcp_port()
    with ParameterServer(["--metrics-port", str(port)]) as server:
        slow, *fast = (make_worker(server.address, i, workers=3, quorum=2, job=6) for i in range(3))
        for worker in (slow, *fast):
            worker.join()
        before = counters_of(scrape(port), job=6)
        for round in (1, 2, 3):
            for worker in fast:
                worker.send_codes([round] * 64, round=round)
            for worker in (slow, *fast):
                worker.receive()
        slow.send_codes([1] * 64, round=1)
        assert slow.receive().header.message_type == MessageType.STRAGGLER
        slow.send_codes([1] * 64, round=4)
        slow.send_codes([1] * 64, round=4)
        slow.retransmit([1] * 64, round=4)
        assert slow.receive().reason == ErrorReason.INCOMPLETE
        after = counters_of(scrape(port), job=6)
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert grown == {
        "completed": 3,
        "partial": 3,
        "stale": 1,
        "duplicates": 2,
        "packets": 10,
        "bytes": 10 * (Header.SIZE_BYTES + 32),
    }


def counters_of(text: str, *, job: int) -> dict[str, int]:
    """Return the counters of a job that have no other label, by their names between thc_ps_ and _total."""
    found = re.findall(rf'^thc_ps_(\w+)_total{{job="{job}"}} (\S+)$', text, re.MULTILINE)
    return {name: int(float(value)) for name, value in found}


def test_a_silent_client_holds_up_neither_scrapes_nor_the_end() -> None:
    port = free_tcp_port()
    with ParameterServer(["--metrics-port", str(port)]), socket.create_connection(("127.0.0.1", port), SOON_S):
        assert "thc_ps_jobs 0" in scrape(port)
        with socket.create_connection(("127.0.0.1", port), SOON_S):
            pass  # the server ends now, with the first client still there


def test_idle_connections_do_not_hold_up_scrapes() -> None:
    """The server gives a quarter of a second to each 64 connections; a scrape among 208 took 20 s once."""
    port = free_tcp_port()
    with ExitStack() as stack:
        stack.enter_context(ParameterServer(["--metrics-port", str(port)]))
        for _ in range(208):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), SOON_S))
        start = time.monotonic()
        assert "thc_ps_jobs 0" in scrape(port)
        assert time.monotonic() - start < 15  # the machine may be busy


def assert_documented(names: set[str]) -> None:
    """The table of ps_software/README.md has these metrics and no others; rules and dashboard name only these."""
    readme = (PS_SOFTWARE / "README.md").read_text(encoding="utf-8")
    patterns = set(re.findall(r"`(thc_ps_[\w*]+)(?:\{[\w,]+\})?`", readme))
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in names)] == []
    for file in ("prometheus.rules.yml", "grafana.json"):
        wanted = set(re.findall(r"\bthc_ps_\w+", (PS_SOFTWARE / "deployment" / file).read_text(encoding="utf-8")))
        assert len(wanted) >= 8
        assert wanted <= names


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_stops_at_once(stop: signal.Signals) -> None:
    server = ParameterServer(ENDLESS_DRAIN)
    server.process.send_signal(stop)
    assert server.process.wait(SOON_S) == 0
    server.stop()


def refused_at_last(server: ParameterServer, make_worker: "MakeWorker", busy: "Worker") -> ErrorReason:
    """Return the refusal of a new worker once the server knows that it must stop; `busy` keeps it from stopping."""
    for job in range(2, 16):  # who got in before would be let in again
        busy.retransmit([1])
        assert busy.receive().reason == ErrorReason.INCOMPLETE
        reply = make_worker(server.address, 0, job=job).say_hello()
        if reply.header.message_type == MessageType.ERROR:
            return reply.reason
        time.sleep(0.02)
    pytest.fail("the server goes on as if it had not been told to stop")


def test_drain_finishes_what_is_in_flight(make_worker: "MakeWorker") -> None:
    server = ParameterServer(ENDLESS_DRAIN)
    pair = [make_worker(server.address, i, workers=2) for i in range(2)]
    for worker in pair:
        worker.join()
    pair[0].send_codes([1])
    pair[0].retransmit([1])
    pair[0].receive()
    server.process.terminate()
    assert refused_at_last(server, make_worker, busy=pair[0]) == ErrorReason.DRAINING
    pair[1].send_codes([2])
    assert [worker.receive().payload for worker in pair] == [bytes([3])] * 2
    assert server.process.wait(SOON_S) == 0
    server.stop()


def test_drain_is_bounded(make_worker: "MakeWorker") -> None:
    server = ParameterServer(["--drain-timeout", "0.3"])
    worker = make_worker(server.address, 0)
    worker.join()
    deadline = time.monotonic() + SOON_S
    sent = 0
    server.process.terminate()
    while server.process.poll() is None and time.monotonic() < deadline:
        sent += 1
        try:
            worker.send_codes([1])
        except ConnectionRefusedError:  # it is gone
            break
        time.sleep(0.02)
    assert server.process.wait(SOON_S) == 0
    assert sent < 200, "without the flag it takes 5 s: as many, on an idle machine"
    server.stop()


def test_idle_threads_sleep() -> None:
    with ParameterServer(["--threads", "4"]) as server:
        time.sleep(0.2)
        before = cpu_ticks(server.process.pid)
        time.sleep(1.0)
        assert cpu_ticks(server.process.pid) - before <= 5, "50 ms of CPU time in a second at most"


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def logged_jobs(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return lines about jobs in the logs of servers that have ended."""
    return re.findall(r"\[(?:info|warning)\] ((?:job|too many jobs) .*)", capfd.readouterr().err)


def test_a_log_that_nobody_reads_ends_nothing(make_worker: "MakeWorker") -> None:
    command = [str(find_thc_ps()), "--listen", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().decode().removeprefix("thc-ps ready on ").strip()
        process.stderr.close()
        make_worker(address, 0).join()
        time.sleep(2.5)  # the job's line is logged once a second
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
