"""`thc demo-switch` with the P4 model, real workers in network namespaces and a real thc-ps."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_host import without_modules

from byteps_thc._base.errors import ConfigurationError
from thc_lab.demo_switch.cli import DEFAULTS, TIME_LIMIT_S
from thc_lab.demo_switch.pace import Pace
from thc_lab.demo_switch.software_switch import SwitchChoice, choose_switches
from thc_lab.demo_switch.time_limit import FEWEST_STEPS, train_within
from thc_lab.namespaces import Cable, CableEnd, Namespaces, command_inside, connect, disable_offloads, inside

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


def test_bmv2_runs_v1model_only_and_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="--program v1model"):
        choose_switches("tna", "bmv2")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match="simple_switch, simple_switch_CLI, p4c-bm2-ss not on PATH"):
        choose_switches("v1model", "bmv2")
    assert choose_switches("v1model", "auto") == [SwitchChoice("v1model", "model")]


@pytest.mark.parametrize("target", ["auto", "model"])
def test_without_the_model_the_error_says_how_to_get_it(tmp_path: Path, target: str) -> None:
    command = [THC, "demo-switch", "--program", "tna", "--target", target]
    environment = os.environ | without_modules(tmp_path, "thc_p4_model")
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=environment
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


@needs_root
@pytest.mark.skipif(shutil.which("ethtool") is None, reason="needs ethtool")
def test_offloads_of_a_cable_are_off() -> None:
    with Namespaces() as namespaces:
        first, second = namespaces.add("first"), namespaces.add("second")
        ends = CableEnd(first, "left", "02:00:00:00:00:01"), CableEnd(second, "right", "02:00:00:00:00:02")
        connect(Cable(*ends))
        for namespace, interface in ((first, "left"), (second, "right")):
            command = [*command_inside(namespace), "ethtool", "-k", interface]
            features = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
            for feature in ("tx-checksumming", "tx-tcp-segmentation", "generic-segmentation", "generic-receive"):
                line = next(line for line in features.splitlines() if line.strip().startswith(feature))
                assert ": off" in line


def test_an_interface_that_is_not_there() -> None:
    with pytest.raises(OSError):
        disable_offloads("thc-not-there")


V1MODEL, TNA = SwitchChoice("v1model", "model"), SwitchChoice("tna", "model")
MANY = 3 * FEWEST_STEPS


def run_s(pace: Pace, steps: int) -> float:
    """Seconds that all three runs of so many steps take."""
    return pace.rest_s + steps * (pace.uncompressed_s + 2 * pace.compressed_s)


def test_what_fits_into_the_time() -> None:
    """The P4 model on two cores, and a Debug build of simple_switch on the same host."""
    model, bmv2 = Pace(0.06, 0.62, 20), Pace(0.06, 5, 20)
    assert model.steps_within(TIME_LIMIT_S) >= DEFAULTS.steps
    assert bmv2.steps_within(TIME_LIMIT_S) == 15
    assert run_s(bmv2, 15) <= TIME_LIMIT_S < run_s(bmv2, 16)
    assert bmv2.steps_within(10) == 0


@needs_root
@pytest.mark.slow
def test_too_slow_a_switch_is_left_for_another_which_trains_fewer_steps() -> None:
    said: list[str] = []
    trained = []
    train_within(
        0.1,  # nothing is fast enough
        [TNA, V1MODEL],
        replace(DEFAULTS, workers=2, steps=MANY, layers=1, width=16),
        said.append,
        lambda settings, choice, train: trained.append((settings, choice, train(lambda _: None))),
    )
    [(settings, choice, results)] = trained
    assert choice == V1MODEL
    assert (settings.steps, settings.judge_loss) == (FEWEST_STEPS, False)
    assert [(result.scheme, len(result.training_loss)) for result in results] == [
        (scheme, FEWEST_STEPS) for scheme in DEFAULTS.schemes
    ]
    assert all(result.workers_agree for result in results)
    first, second, third, fourth = said
    assert first.startswith("Measuring the first steps of the P4 model with p4/programs/tna")
    assert second.endswith(f"time for 0 of {MANY} steps: too slow")
    assert third.startswith("Measuring the first steps of the P4 model with p4/programs/v1model")
    assert f"it is used for {FEWEST_STEPS}, after which losses are not judged" in fourth
