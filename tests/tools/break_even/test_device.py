"""`thc break-even --device` and `--gpus-per-node`: numbers by hand, where they are from, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.break_even.costs import Costs
from byteps_thc.tools.break_even.device_speed import RECORDED, DeviceSpeed, buckets_of, measure
from byteps_thc.tools.cli import app
from byteps_thc.transport.link_bytes import link_bytes

runner = CliRunner()
SPEED = DeviceSpeed("by hand", host_s=1e-3, kernels_s=1e-11, bf16_bucket_s=5e-4)
NUMBERS = ("--host-ms", "1", "--kernel-ps", "10", "--bf16-ms", "0.5")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def break_even(*arguments: str) -> dict[str, Any]:
    result = runner.invoke(app, ["break-even", "--device", "--json", *arguments])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_costs_by_hand() -> None:
    # 100 M parameters in 16 buckets: kernels 1 ms, the host 16 ms, bf16 8 ms.
    assert SPEED.thc_s(100_000_000, 16) * 1e8 == pytest.approx(17e-3)
    assert SPEED.bf16_s(100_000_000, 16) * 1e8 == pytest.approx(8e-3)
    costs = Costs.of_device(SPEED, 100_000_000, 16, 4)
    assert costs.flat_s * 1e8 == pytest.approx(17e-3)
    assert costs.two_levels_s * 1e8 == pytest.approx(16.25e-3)  # a quarter of the kernels, and every bucket


def test_buckets() -> None:
    assert buckets_of(25 * (1 << 18), 25) == 1
    assert buckets_of(25 * (1 << 18) + 1, 25) == 2
    assert buckets_of(1, 25) == 1
    assert buckets_of(100 << 18, 12.5) == 8
    for none in (0, -1, 1e-9, float("inf"), float("nan")):
        with pytest.raises(ConfigurationError, match=r"--bucket-mb must be 0\.001 or more"):
            buckets_of(1, none)


def test_the_recorded_numbers_are_those_of_the_docs() -> None:
    """14 buckets take the host 20 ms, and kernels 2.4 ms of 110 M parameters; bf16 adds 5.8 ms to a step."""
    step_s = 110_253_056 * RECORDED.thc_s(110_253_056, 14)
    assert step_s == pytest.approx(19.8e-3 + 2.4e-3)
    assert 110_253_056 * RECORDED.bf16_s(110_253_056, 14) == pytest.approx(5.8e-3)
    answer = break_even()
    assert "recorded on an H100" in answer["costs"]
    assert "not measured here" in answer["costs"]


def test_a_step_by_hand() -> None:
    """104,857,600 parameters in 16 buckets; 8 ranks send 7/8 of 5 bits each way."""
    answer = break_even("--parameters", "104857600", "--workers", "8", "--bandwidth", "10G", *NUMBERS)
    fp32, bf16, thc = answer["schemes"]
    [step] = thc["steps"]
    link_s = 104_857_600 * 7 / 8 * (5 + 5) / 10e9
    assert step["serial_s"] == pytest.approx(link_s + 16e-3 + 104_857_600 * 1e-11)
    assert step["overlapped_s"] == pytest.approx(link_s)
    assert bf16["steps"][0]["serial_s"] == pytest.approx(104_857_600 * 3.5 * 8 / 10e9 + 8e-3)
    assert fp32["compute_s_per_parameter"] == 0
    assert "--host-ms, --kernel-ps, --bf16-ms as given" in answer["costs"]


def test_larger_buckets_cost_less() -> None:
    points = [
        break_even("--bucket-mb", size, "--parameters", "110M", *NUMBERS)["break_even_bps"]["bf16"]["serial"]
        for size in ("25", "100")
    ]
    assert 2 * points[0] < points[1]


@pytest.mark.parametrize(("workers", "ranks", "loses"), [(64, 8, True), (8, 4, False)])
def test_bytes_over_a_nodes_cards(workers: int, ranks: int, loses: bool) -> None:
    arguments = ("--workers", str(workers), "--gpus-per-node", str(ranks), "--bandwidth", "25G")
    answer = break_even(*arguments)
    sent = link_bytes([ranks] * (workers // ranks))
    assert {scheme["name"]: scheme["link_bytes_per_parameter"] for scheme in answer["schemes"]} == {
        "fp32": sent.fp32,
        "bf16": sent.bf16,
        "flat THC": sent.flat,
        "THC": sent.two_levels,
    }
    assert answer["break_even_bps"]["bf16"]["serial"] > 25e9
    result = runner.invoke(app, ["break-even", "--device", *arguments], env={"COLUMNS": "200"})
    assert ("it loses to bf16 at any bandwidth" in result.output) == loses
    assert f"on {workers // ranks} nodes" in result.output
    assert "host's part 1.41 ms per bucket" in result.output


def test_nodes_of_a_processor_share_its_work() -> None:
    fast = ("--seconds", "0.2", "--threads", "1", "--parameters", "200k", "--workers", "4", "--gpus-per-node", "2")
    result = runner.invoke(app, ["break-even", "--json", *fast])
    assert result.exit_code == 0, result.output
    _, _, flat, thc = json.loads(result.stdout)["schemes"]
    assert thc["compute_s_per_parameter"] == pytest.approx(flat["compute_s_per_parameter"] / 2)
    assert flat["link_bytes_per_parameter"] == pytest.approx(link_bytes([2, 2], ring=False).flat)


def test_what_a_gpu_measures_is_a_time_each() -> None:
    """The same calls in host memory, with gloo."""
    speed = measure("here", "gloo", torch.device("cpu"), 100_000, 1.0, 0.3)
    assert all(0 < value < 1 for value in (speed.host_s, speed.bf16_bucket_s))
    assert 0 < speed.kernels_s < 1e-4
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus-per-node", "3"], "--gpus-per-node must leave two equal nodes or more of the 4 workers, not 3"),
        (["--gpus-per-node", "4"], "--gpus-per-node must leave two equal nodes"),
        (["--gpus-per-node", "0"], "--gpus-per-node must leave two equal nodes"),
        (["--device", "--engine", "network"], "--device and --gpus-per-node are for ranks"),
        (["--gpus-per-node", "2", "--engine", "network"], "--device and --gpus-per-node are for ranks"),
        (["--host-ms", "1"], "--host-ms: a GPU's, so give --device, too"),
        (["--device", "--host-ms", "-1"], "--host-ms must be a time"),
        (["--device", "--kernel-ps", "nan"], "--kernel-ps must be a time"),
        (["--device", "--bf16-ms", "inf"], "--bf16-ms must be a time"),
        (["--device", "--bucket-mb", "0"], "--bucket-mb must be 0.001 or more"),
    ],
)
def test_refuses_what_cannot_work(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, ["break-even", *arguments])
    assert result.exit_code == 1
    assert message in result.stderr


def test_no_buckets_of_no_size() -> None:
    with pytest.raises(ConfigurationError, match="--bucket-mb"):
        buckets_of(10, float("nan"))
