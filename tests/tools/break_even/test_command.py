"""`thc break-even`: what it reads, measures, prints and draws."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_host import without_modules
from typer.testing import CliRunner

from byteps_thc.config import ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.rank_settings import RankSettings
from byteps_thc.tools.break_even.quantities import (
    parse_bandwidth_bps,
    parse_parameters,
    show_bandwidth,
    show_parameters,
    show_seconds,
)
from byteps_thc.tools.break_even.speed import measure
from byteps_thc.tools.cli import app

runner = CliRunner()
FAST = ("--seconds", "0.2", "--threads", "1", "--parameters", "200k")


@pytest.mark.parametrize(("text", "value"), [("25M", 25_000_000), ("1.5B", 1_500_000_000), ("12", 12), ("7k", 7000)])
def test_parameters(text: str, value: int) -> None:
    assert parse_parameters(text) == value


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "25 M", "25G", "1e9", "0.1"])
def test_parameters_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--parameters"):
        parse_parameters(text)


@pytest.mark.parametrize(("text", "value"), [("100M", 1e8), ("2.5G", 2.5e9), ("10Gb/s", 1e10), ("1Tbit/s", 1e12)])
def test_bandwidths(text: str, value: float) -> None:
    assert parse_bandwidth_bps(text) == value


@pytest.mark.parametrize("text", ["", "10", "0G", "-1G", "10GB/s", "fast"])
def test_bandwidths_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--bandwidth"):
        parse_bandwidth_bps(text)


def test_numbers_with_units() -> None:
    assert show_bandwidth(2.5e9) == "2.5 Gb/s"
    assert show_bandwidth(1e8) == "100 Mb/s"
    assert show_bandwidth(math.inf) == "any bandwidth"
    assert [show_parameters(count) for count in (7_000_000_000, 25_000_000, 12)] == ["7 B", "25 M", "12"]
    shown = ["3331 s", "1.5 s", "1 s", "12.3 ms", "1 ms", "45 us", "0 us"]
    assert [show_seconds(seconds) for seconds in (3331.4, 1.5, 0.9999, 0.0123, 0.0009996, 0.000045, 0.0)] == shown


def test_measured_speed_is_the_kernels() -> None:
    """Between a hundredth of a nanosecond and a microsecond per parameter, on any machine that builds this."""
    speed = measure(RankSettings.of(ThcConfig(), 4), threads=1, parameters=300_000, seconds=0.4)
    assert all(1e-11 < value < 1e-6 for value in (speed.encode_s, speed.decode_s, speed.bf16_s or 0.0))
    assert 0 < speed.average_s < 2 * speed.encode_s  # 3/2 of the rotations
    assert speed.compute_s == pytest.approx(speed.encode_s + speed.average_s + speed.decode_s, rel=1e-12)


@pytest.mark.parametrize("config", [ThcConfig(), ThcConfig(value_bits=16)])
def test_servers_average_for_a_worker(config: ThcConfig) -> None:
    speed = measure(config.resolve(4), threads=1, parameters=100_000, seconds=0.2)
    assert speed.average_s == 0
    assert speed.compute_s == speed.encode_s + speed.decode_s > 0


def test_the_command_end_to_end(tmp_path: Path) -> None:
    plot = tmp_path / "times.png"
    arguments = [
        "break-even",
        *FAST,
        "--workers",
        "4",
        "--bandwidth",
        "1G,10G",
        "--bandwidth",
        "100M",
        "--plot",
        str(plot),
    ]
    result = runner.invoke(app, [*arguments, "--explain"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "This host, 1 thread, ns per parameter: encode" in result.output
    assert "Ns per byte sent, by gloo: all-reduce " in result.output
    assert "fp32 6, bf16 3, THC" in result.output
    rows = [result.output.index(f"│ {link} ") for link in ("100 Mb/s", "1 Gb/s", "10 Gb/s")]
    assert rows == sorted(rows)
    assert "THC is faster than fp32 " in result.output
    assert "THC is faster than bf16 " in result.output
    assert "serial      W = (b_o - b_t) / (c_t - c_o)" in result.output
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("engine", ["network", "collective"])
def test_json(engine: str) -> None:
    result = runner.invoke(app, ["break-even", *FAST, "--engine", engine, "--bandwidth", "1G", "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    fp32, bf16, thc = answer["schemes"]
    assert (fp32["link_bytes_per_parameter"], bf16["link_bytes_per_parameter"]) == (6.0, 3.0)
    expected = 1.0 if engine == "network" else 0.75 * (5 + 5) / 8
    assert thc["link_bytes_per_parameter"] == pytest.approx(expected)
    [step] = thc["steps"]
    assert step["serial_s"] == pytest.approx(200_000 * (thc["compute_s_per_parameter"] + expected * 8 / 1e9))
    # fp32's own bytes may cost the processor more than THC's kernels: null is any bandwidth.
    assert (answer["break_even_bps"]["fp32"]["serial"] or math.inf) > 0
    assert all(scheme["compute_s_per_parameter"] > 0 for scheme in answer["schemes"])


def test_without_torch_bf16_costs_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", "from byteps_thc.tools.cli import app; app()", "break-even", *FAST]
    environment = os.environ | without_modules(tmp_path, "torch")
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    assert "bf16 and back not measured, since torch is not installed. What sending costs was not measured." in (
        result.stdout
    )


def test_ranks_that_share_a_host_wait_for_its_cores() -> None:
    """As many ranks as cores, and twice as many: everything takes twice as long, within what a busy machine does."""
    cores = len(os.sched_getaffinity(0))
    seconds = []
    for ranks in (cores, 2 * cores):
        options = ["--workers", "1000", "--ranks-per-host", str(ranks), "--bandwidth", "1G", "--json"]
        result = runner.invoke(app, ["break-even", "--seconds", "1", "--parameters", "1M", *options])
        assert result.exit_code == 0, result.output
        answer = json.loads(result.stdout)
        assert (f"{ranks / cores:g} ranks wait for each core" in answer["costs"]) is (ranks > cores)
        seconds.append([scheme["compute_s_per_parameter"] for scheme in answer["schemes"]])
    for alone, crowded in zip(*seconds, strict=True):
        assert crowded == pytest.approx(2 * alone, rel=0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "1"], "--workers must be at least 2"),
        (["--workers", "1025"], "ranks must be in 1 .. 1024"),
        (["--workers", "65", "--engine", "network"], "at most 64 workers"),
        (["--ranks-per-host", "0"], "--ranks-per-host must be in 1 .. 4, the workers, not 0"),
        (["--ranks-per-host", "5"], "--ranks-per-host must be in 1 .. 4, the workers, not 5"),
        (["--threads", "0"], "--threads must be in 1 .. "),
        (["--threads", "4096"], "--threads must be in 1 .. "),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--bandwidth", "fast"], "--bandwidth must be bits per second"),
        (["--parameters", "many"], "--parameters must be a number"),
    ],
)
def test_refuses_what_cannot_work(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, ["break-even", *arguments])
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_plot_that_cannot_be_written(tmp_path: Path) -> None:
    result = runner.invoke(app, ["break-even", *FAST, "--plot", str(tmp_path / "no" / "folder.png")])
    assert result.exit_code == 1
    assert "--plot cannot write" in result.stderr
