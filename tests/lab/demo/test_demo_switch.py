"""`thc demo-switch` with the P4 model, real workers in network namespaces and a real thc-ps."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_host import without_modules

from byteps_thc._scheme.errors import ConfigurationError
from thc_lab.demo_switch.software_switch import SwitchChoice, choose_switches
from thc_lab.namespaces import Cable, CableEnd, Namespaces, connect, inside

THC = str(Path(sys.executable).parent / "thc")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@needs_root
@pytest.mark.parametrize("program", ["v1model", pytest.param("tna", marks=pytest.mark.slow)])
def test_trains_through_the_switch_program(tmp_path: Path, program: str) -> None:
    command = [THC, "demo-switch", "--program", program, "--target", "model", "--workers", "2", "--steps", "2"]
    finished = subprocess.run(
        [*command, "--no-check", "--out", str(tmp_path)], capture_output=True, text=True, timeout=280, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert f"the P4 model with p4/programs/{program}" in finished.stdout.replace("\n", " ")
    assert "sums equal to thc-ps's" in finished.stdout
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["aggregators"].startswith(f"the P4 model with p4/programs/{program}")
    runs = {run["scheme"]: run for run in results["runs"]}
    for scheme in ("uniform-thc", "thc"):
        assert runs[scheme]["workers_agree"]
        # maximum norms and aggregates of three partitions in two steps
        assert runs[scheme]["counters"]["compared_with_thc_ps"] == 12
        assert runs[scheme]["configuration"]["codes_per_packet"] == 1024


def test_bmv2_runs_v1model_only() -> None:
    with pytest.raises(ConfigurationError, match="--program v1model"):
        choose_switches("tna", "bmv2")


def test_bmv2_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match="simple_switch, simple_switch_CLI, p4c-bm2-ss not on PATH"):
        choose_switches("v1model", "bmv2")
    assert choose_switches("v1model", "auto") == [SwitchChoice("v1model", "model")]


@pytest.mark.parametrize("target", ["auto", "model"])
def test_without_the_model_the_error_says_how_to_get_it(tmp_path: Path, target: str) -> None:
    finished = subprocess.run(
        [THC, "demo-switch", "--program", "tna", "--target", target],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env=os.environ | without_modules(tmp_path, "thc_p4_model"),
    )
    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert line.startswith("thc: the P4 model is not installed (")
    assert line.endswith(": in a clone of byteps_thc, pip install ./p4/thc_p4_model")


def test_namespaces_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigurationError, match="need root"):
        Namespaces()


@needs_root
def test_sockets_stay_in_the_namespace_they_were_opened_in() -> None:
    here = socket.if_nameindex()
    with Namespaces() as namespaces:
        first, second = namespaces.add("first"), namespaces.add("second")
        left = CableEnd(first, "left", "02:00:00:00:00:01", "10.77.0.1/24")
        right = CableEnd(second, "right", "02:00:00:00:00:02", "10.77.0.2/24")
        connect(Cable(left, right))
        with inside(first), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            with inside(second):
                assert [name for _, name in socket.if_nameindex()] == ["lo", "right"]
                receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with receiver:
                receiver.bind(("10.77.0.2", 0))
                receiver.settimeout(10)
                sender.sendto(b"hello", receiver.getsockname())
                assert receiver.recv(10) == b"hello"
    assert socket.if_nameindex() == here
