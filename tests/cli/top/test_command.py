"""thc top, beside a thc-ps that serves a job."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest
from free_ports import free_tcp_port
from rich.console import Console
from typer.testing import CliRunner

from byteps_thc import Compressor, GradientAverager, Session, ThcConfig
from byteps_thc._cli.cli import app
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._cli.top import metrics
from byteps_thc._cli.top.metrics import INCOMPLETE, NO_JOB, Scrape, scrape, url_of
from byteps_thc._cli.top.rates import Line, lines, short, view
from byteps_thc._scheme.errors import ConfigurationError, TransportError

JOB, WORKERS, COORDINATES = 7, 2, 100_000


def words(output: str) -> str:
    return " ".join(output.split())


@pytest.fixture
def busy_server() -> Iterator[str]:
    """Address of the metrics of a thc-ps through which two workers average all the time."""
    port, stop = free_tcp_port(), threading.Event()

    def work(worker: int, server: str) -> None:
        config = ThcConfig()
        with Session([server], job=JOB, worker=worker, workers=WORKERS, config=config) as session:
            averager = GradientAverager(session, Compressor(config, workers=WORKERS, worker=worker, threads=1))
            # Both stop after the same number of averages: that which worker 0 was at.
            for round in range(100_000):
                flag = np.full(COORDINATES, float(stop.is_set() and worker == 0), np.float32)
                averager.average({"stop": flag})
                if flag[0] > 0.2:
                    break
                time.sleep(0.005 if round else 0)

    with ParameterServer(["--metrics-port", str(port)]) as server, ThreadPoolExecutor(WORKERS) as pool:
        running = [pool.submit(work, worker, server.address) for worker in range(WORKERS)]
        try:
            deadline = time.monotonic() + 10
            while not scrape(url_of(f":{port}"), 5).get("thc_ps_completed_total", str(JOB)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            stop.set()
            for one in running:
                one.result(timeout=30)


def test_busy_server(busy_server: str) -> None:
    """What it shows is what the server counts: every sum has a packet of each worker."""
    before = scrape(url_of(busy_server), 5)
    time.sleep(0.5)
    [line] = [found for found in lines("here", before, scrape(url_of(busy_server), 5)) if found.job != NO_JOB]
    assert (line.job, line.workers) == (str(JOB), WORKERS)
    assert line.sums > 0
    assert line.packets - line.repeated - line.stale == pytest.approx(WORKERS * line.sums, rel=0.3)
    assert line.received_bits > 8 * line.packets * 30
    assert line.slots >= line.slots_in_use
    assert line.memory_bytes > 0
    looks, silent = ["--interval", "0.2", "--count", "2"], f"127.0.0.1:{free_tcp_port()}"
    result = CliRunner().invoke(app, ["top", busy_server, silent, *looks], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert result.stdout.count(f"{silent} does not answer") == 2
    assert result.stdout.count("sums") == 2
    assert result.stdout.startswith(f"{busy_server} ")
    assert f" {JOB} {WORKERS} " in words(result.stdout)


def test_server_without_jobs() -> None:
    port = free_tcp_port()
    with ParameterServer(["--metrics-port", str(port)]):
        result = CliRunner().invoke(app, ["top", f":{port}", "--interval", "0.1", "--count", "1"])
    assert "no jobs on 1 server(s)" in words(result.stdout)


def test_rates() -> None:
    """Of 2 seconds; a server that was started again counts from 0, which is no negative rate."""

    def at(seconds: float, packets: float, duplicates: float, dropped: float) -> Scrape:
        counters = {"packets": packets, "duplicates": duplicates, "dropped_packets": dropped}
        values = {(f"thc_ps_{name}_total", "3"): value for name, value in counters.items()}
        return Scrape(seconds, {**values, ("thc_ps_workers", "3"): 4.0, ("thc_ps_packets_total", NO_JOB): 0.0})

    [line] = lines("a", at(1, 100, 0, 10), at(3, 300, 20, 10))
    assert (line.packets, line.repeated, line.dropped, line.workers) == (100, 10, 0, 4)
    assert "10.0%" in line.cells()
    [line] = lines("a", at(1, 1000, 50, 0), at(3, 10, 0, 0))
    assert (line.packets, line.repeated) == (0, 0)
    [line] = lines("a", None, at(3, 10, 0, 0))  # it did not answer before
    assert line.packets == 0


def test_a_worker_that_asks_for_whom_it_waits_is_no_error() -> None:
    def at(seconds: float, errors: float, waits: float) -> Scrape:
        counters = {"thc_ps_errors_sent_total": errors, INCOMPLETE: waits}
        return Scrape(
            seconds, {(name, "3"): value for name, value in counters.items()} | {("thc_ps_workers", "3"): 4.0}
        )

    [line] = lines("a", at(1, 10, 8), at(2, 22, 17))
    assert line.errors == 3


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.0.1", "http://10.0.0.1:9464/metrics"),
        (":80", "http://127.0.0.1:80/metrics"),
        ("ps-1.local:9000", "http://ps-1.local:9000/metrics"),
        ("[::1]:9000", "http://[::1]:9000/metrics"),
    ],
)
def test_addresses(address: str, url: str) -> None:
    assert url_of(address) == url


@pytest.mark.parametrize("address", ["", "http://a:1", "a:b", "a:1:2", "a b"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        url_of(address)


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["top", *arguments])
    assert result.exit_code == 1, result.output
    return words(result.output)


def test_nobody_answers() -> None:
    assert "does not answer: [Errno 111] Connection refused. Start thc-ps there with --metrics-port" in refusal(
        f":{free_tcp_port()}"
    )


class Other(HTTPServer):
    """Answers with `head` and then with `again`, again and again, until nobody listens."""

    def __init__(self, head: bytes, again: bytes = b"") -> None:
        self.head, self.again = head, again
        super().__init__(("127.0.0.1", 0), OtherAnswer)


class OtherAnswer(BaseHTTPRequestHandler):
    server: Other

    def do_GET(self) -> None:
        with contextlib.suppress(OSError):
            self.wfile.write(self.server.head)
            while self.server.again:
                self.wfile.write(self.server.again)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(*what: Any) -> Iterator[str]:
    with Other(*what) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


OK = b"HTTP/1.1 200 OK\r\n\r\n"
UP = OK + b"thc_ps_uptime_seconds 5\n"


def test_something_else_answers() -> None:
    with answering(OK + b"some_metric 1\n") as address:
        assert "answers, but is not a thc-ps: pass the port of thc-ps --metrics-port" in refusal(address)
    with answering(b"HTTP/1.1 404 Not Found\r\n\r\n") as address:
        assert "404 Not Found" in refusal(address)
    with answering(b"SSH-2.0-OpenSSH\r\n") as address:
        assert f"{address}/metrics does not answer: " in refusal(address)


def test_an_answer_without_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_MAX_BYTES", 1 << 20)
    endless = answering(UP, b"thc_ps_workers 1\n" * 4096)
    with endless as address, pytest.raises(TransportError, match="more than 1 MiB"):
        scrape(url_of(address), 0.5)


def test_labels_and_values_may_be_anything() -> None:
    """Of jobs that are no numbers, in bytes that are no UTF-8, or that a terminal or rich would obey."""
    jobs = ["12", "3", "größe", "[/red]", "\x1b[2J", "\udcff"]
    text = "".join(f'thc_ps_workers{{job="{job}"}} 2\n' for job in jobs)
    text += 'thc_ps_slots{job="3"} NaN\nthc_ps_slots_in_use{job="3"} many\n'
    with answering(UP + text.encode(errors="surrogateescape")) as address:
        assert scrape(url_of(address), 5).jobs == ["3", "12", "?[2J", "[/red]", "größe", "\ufffd"]
        result = CliRunner().invoke(app, ["top", address, "--interval", "0.1", "--count", "1"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "größe 2 " in words(result.stdout)
    assert "[/red] 2 " in words(result.stdout)
    assert "\x1b[2J" not in result.stdout


def test_an_address_of_ipv6_is_shown_as_it_is() -> None:
    [line] = lines("[fe80::1]:9464", None, Scrape(1.0, {("thc_ps_workers", "3"): 4.0}))
    console = Console(width=200, file=io.StringIO())
    console.print(view([line], ["[fe80::1]:9464"], ["[fe80::2]:9464"]))
    assert "[fe80::1]:9464" in console.file.getvalue()
    assert "[fe80::2]:9464 does not answer" in console.file.getvalue()


def test_eighty_columns_hold_the_widest_figures() -> None:
    """Of two servers, whose columns are below each other; none is cut."""
    widest = {
        "packets": 123456.0, "received_bits": 98765e6, "sums": 999999.0, "repeated": 123456.0, "stale": 123456.0,
        "dropped": 123456.0, "errors": 99999.0, "slots_in_use": 1024, "slots": 1024, "memory_bytes": 9 << 30,
    }  # fmt: skip
    found = [Line(server, job, 64, **widest) for server, job in (("100.100.100.100:19464", "65535"), ("b", "7"))]
    console = Console(width=80, file=io.StringIO())
    console.print(view(found, ["a", "b"]))
    output = console.file.getvalue()
    first, second = (line for line in output.splitlines() if " 64 " in line)
    assert len(first) == len(second) <= 80
    assert "…" not in output
    assert first.split() == ["65535", "64", "123k", "98.8k", "1.0M", *["100.0%"] * 3, "100k", "100%", "9,216"]
    assert first.split()[1:] == second.split()[1:]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.04, "0"),
        (0.25, "0.2"),
        (9.96, "10"),
        (9999.4, "9,999"),
        (9999.6, "10.0k"),
        (999_600, "1.0M"),
        (2e8, "200M"),
    ],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short(number) == text


def test_options_that_do_not_fit() -> None:
    assert "--interval must be in 0.1 .. 3600" in refusal("--interval", "0")
    assert "--count must be at least 1" in refusal("--count", "0")
