"""`thc demo` with real worker processes and a real thc-ps: a few steps, and every way it can end."""

import json
import multiprocessing
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from byteps_thc._native._comm import has_dpdk
from thc_lab.demo.launcher import receive
from thc_lab.demo.settings import Failure
from thc_lab.namespaces import FOLDER

THC = str(Path(sys.executable).parent / "thc")
PNG_SIGNATURE = b"\x89PNG"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def command(folder: Path, *arguments: str) -> list[str]:
    return [THC, "demo", "--workers", "2", "--out", str(folder), *arguments]


def run_demo(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run to the end; returns the process and demo-out/results.json."""
    finished = subprocess.run(
        command(folder, "--batch-size", "2", *arguments), capture_output=True, text=True, timeout=500, check=False
    )
    assert (folder / "results.json").exists(), finished.stderr
    return finished, json.loads((folder / "results.json").read_text(encoding="utf-8"))


def runs_by_scheme(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {run["scheme"]: run for run in results["runs"]}


def check_runs(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Check common results of runs with and without links; return the runs."""
    runs = runs_by_scheme(results)
    assert list(runs) == ["fp32", "bf16", "thc", "thc-ranks"]
    for run in runs.values():
        assert len(run["training_loss"]) == len(run["step_s"]) == 12
        assert run["wall_s"] == pytest.approx(sum(run["step_s"]))
        assert run["training_loss"][-1] < run["training_loss"][0]
        assert run["workers_agree"]
    # the same start and the same batches: the first loss comes before any averaging
    assert len({run["training_loss"][0] for run in runs.values()}) == 1
    return runs


def check_shown(finished: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert finished.returncode == 0, finished.stderr
    table = [line for line in finished.stdout.splitlines() if line.startswith("│")]
    assert [line.split("│")[1].strip() for line in table] == ["fp32", "bf16", "THC, thc-ps", "THC among ranks"]
    assert all(len(line) <= 80 for line in table)
    for name in ("loss_by_seconds.png", "loss_by_bytes.png"):
        assert (folder / name).read_bytes().startswith(PNG_SIGNATURE)


@needs_root
def test_trains_on_slow_links_and_says_what_that_gains(tmp_path: Path) -> None:
    finished, results = run_demo(tmp_path, "--steps", "12", "--no-check")
    check_shown(finished, tmp_path)
    runs = check_runs(results)
    assert "Links: 100 Mb/s to and from each worker's host" in finished.stdout
    last = finished.stdout.splitlines()[-1]
    assert "s, fp32 after" in last
    assert "fewer bytes; its last loss is" in last
    # Two ranks send each other half of the gradient, twice; frames have headers, and TCP has answers.
    payload = 12 * 4 * runs["fp32"]["coordinates"]
    assert payload < runs["fp32"]["sent_bytes"] < 1.1 * payload
    assert 1.8 < runs["fp32"]["sent_bytes"] / runs["bf16"]["sent_bytes"] < 2.05
    assert 6.7 < runs["fp32"]["sent_bytes"] / runs["thc-ranks"]["sent_bytes"] < 7.8
    # A link of 100 Mb/s cannot be faster.
    assert runs["fp32"]["wall_s"] > payload / 12.5e6


def test_loopback_says_that_times_show_no_gain(tmp_path: Path) -> None:
    finished, results = run_demo(tmp_path, "--steps", "12", "--no-check", "--link-mbit", "0")
    check_shown(finished, tmp_path)
    runs = check_runs(results)
    assert "Links: loopback, no limit: times show no gain (--link-mbit 0)." in finished.stdout
    assert finished.stdout.splitlines()[-1].endswith("Links without a limit say nothing about time.")
    fp32, thc = runs["fp32"]["traffic"], runs["thc"]["traffic"]
    assert fp32["payload_up"] == 4 * runs["thc"]["coordinates"]
    # A worker that waits long for a busy machine sends again; the bytes of that are counted.
    packet_bytes = runs["thc"]["configuration"]["codes_per_packet"] / 2
    repeated = runs["thc"]["counters"]["retransmissions"] * packet_bytes / 12
    assert fp32["payload_up"] / thc["payload_up"] <= 8
    assert fp32["payload_up"] / (thc["payload_up"] - repeated) > 7.6
    assert 3.8 < fp32["payload_down"] / thc["payload_down"] <= 4
    assert thc["wire_up"] > thc["payload_up"]
    assert runs["thc-ranks"]["configuration"]["bits"] == 4
    assert runs["fp32"]["sent_bytes"] == 12 * 4 * runs["fp32"]["coordinates"]
    assert 7.2 < runs["fp32"]["sent_bytes"] / runs["thc-ranks"]["sent_bytes"] < 7.8


@needs_root
def test_without_tc_the_demo_falls_back_to_loopback(tmp_path: Path) -> None:
    """And removes the namespaces that it had made."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("ip", "nsenter", "setpriv"):
        (tools / name).symlink_to(shutil.which(name) or name)
    environment = os.environ | {"PATH": str(tools)}
    arguments = command(tmp_path, "--batch-size", "2", "--steps", "2", "--no-check", "--schemes", "fp32")
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as demo:
        output, errors = demo.communicate(timeout=500)
    assert demo.returncode == 0, errors
    assert "Links: loopback, no limit: times show no gain (Command" in output
    assert not [place for place in FOLDER.iterdir() if place.name.startswith(f"thc{demo.pid}.")]
    refused = subprocess.run(
        [*arguments, "--link-mbit", "50"], capture_output=True, text=True, timeout=400, check=False, env=environment
    )
    assert refused.returncode != 0
    assert "--link-mbit 50: " in refused.stderr


def test_loss_tolerant_training_goes_on_through_lost_packets(tmp_path: Path) -> None:
    finished, results = run_demo(tmp_path, "--steps", "6", "--loss-tolerant", "--drop", "0.02", "--no-check", "--json")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["runs"] == results["runs"]
    thc = runs_by_scheme(results)["thc"]
    assert thc["counters"]["given_up"] > 0
    assert thc["training_loss"][-1] < thc["training_loss"][0]


def test_schemes_are_chosen_by_name(tmp_path: Path) -> None:
    finished, results = run_demo(tmp_path, "--steps", "2", "--no-check", "--schemes", "uniform-thc,fp32")
    assert finished.returncode == 0, finished.stderr
    assert list(runs_by_scheme(results)) == ["uniform-thc", "fp32"]
    for wrong, error in (("thc,none", "names out of fp32, uniform-thc"), ("thc,thc", "names a scheme twice")):
        refused = subprocess.run(command(tmp_path, "--schemes", wrong), capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert error in refused.stderr
    refused = subprocess.run(command(tmp_path, "--link-mbit", "1"), capture_output=True, text=True, check=False)
    assert "--link-mbit must be 0 (loopback) or in 5 .." in refused.stderr


@pytest.mark.slow
def test_options_reach_the_workers(tmp_path: Path) -> None:
    options = ["--granularity", "20", "--p", "0.01", "--seed", "7"]
    finished, results = run_demo(tmp_path, "--steps", "3", "--no-check", *options)
    assert finished.returncode == 0, finished.stderr
    thc = runs_by_scheme(results)["thc"]
    assert thc["configuration"]["granularity"] == 20
    assert thc["configuration"]["p"] == 0.01
    assert results["settings"]["seed"] == 7
    _, other_seed = run_demo(tmp_path, "--steps", "3", "--no-check", "--seed", "8")
    assert thc["training_loss"] != runs_by_scheme(other_seed)["thc"]["training_loss"]


@pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK")
@needs_root  # DPDK without huge pages
@pytest.mark.slow
def test_trains_over_dpdk(tmp_path: Path) -> None:
    finished, results = run_demo(tmp_path, "--steps", "3", "--backend", "dpdk", "--no-check")
    assert finished.returncode == 0, finished.stderr
    assert list(runs_by_scheme(results)) == ["fp32", "thc"]
    thc = runs_by_scheme(results)["thc"]
    assert len(thc["training_loss"]) == 3
    assert thc["workers_agree"]


@pytest.mark.slow
def test_a_full_disk_does_not_lose_the_table(tmp_path: Path) -> None:
    (tmp_path / "results.json").symlink_to("/dev/full")
    finished = subprocess.run(
        command(tmp_path, "--batch-size", "2", "--steps", "2", "--no-check"),
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert finished.returncode == 1
    assert "last loss" in finished.stdout
    assert "No space left on device; the results are above" in finished.stderr


@pytest.mark.slow
def test_missed_targets_are_an_error(tmp_path: Path) -> None:
    # One bit is too little for a gradient average within a percent after so few steps.
    finished, results = run_demo(tmp_path, "--steps", "20", "--bits", "1")
    assert finished.returncode == 1
    assert "missed:" in finished.stdout
    assert results["shortcomings"]


def test_a_killed_worker_ends_the_demo_and_leaves_no_process(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        command(tmp_path, "--steps", "10000"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        children = wait_for_children(demo.pid, count=5)  # two thc-ps, multiprocessing's resource tracker, two workers
        worker = next(pid for pid in reversed(children) if b"spawn_main" in cmdline(pid))
        time.sleep(2)
        os.kill(worker, signal.SIGKILL)
        _, errors = demo.communicate(timeout=400)
    finally:
        demo.kill()
    assert demo.returncode == 1
    assert "was killed by signal 9" in errors
    assert "Traceback" not in errors
    assert [pid for pid in children if cmdline(pid)] == []


def test_a_worker_killed_in_the_middle_of_a_message_is_a_failure_too() -> None:
    reader, writer = multiprocessing.Pipe(duplex=False)
    os.write(writer.fileno(), struct.pack("!i", 100) + b"less than 100 bytes")
    writer.close()
    worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), name="worker 0")
    worker.start()
    worker.kill()
    open_channels: dict[Connection, BaseProcess] = {reader: worker}
    assert receive(reader, open_channels) == Failure("worker 0", "was killed by signal 9", details="")
    assert not open_channels
    worker.close()


def wait_for_children(parent: int, *, count: int) -> list[int]:
    deadline = time.monotonic() + 30
    path = Path(f"/proc/{parent}/task/{parent}/children")
    while time.monotonic() < deadline:
        children = [int(pid) for pid in path.read_text(encoding="ascii").split()]
        if len(children) >= count:
            return children
        time.sleep(0.05)
    pytest.fail("the demo did not start its processes")


def cmdline(pid: int) -> bytes:
    """Command line of a process; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
