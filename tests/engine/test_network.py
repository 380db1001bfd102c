"""The network engine on real ranks and a lossy thc-ps, with host kernels and with device kernels on CPU tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import TENSORS, bits, check_case, of_all_ranks

from byteps_thc._cli.launch import ParameterServer
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("engine_rank.py")
FEEDBACK = {"error_feedback": True}
PIECES: dict[str, Any] = {
    "name": "pieces",
    "thc": {"partition_bytes": 1 << 16} | FEEDBACK,
    "sizes": [[60_000, 12], [300], [5000]],
}
_CASES: list[dict[str, Any]] = [
    PIECES,
    PIECES | {"name": "faults", "thc": FEEDBACK, "faults": {"drop": 0.02, "reorder": 0.02}},
    PIECES | {"name": "no padding", "sizes": [[40_000], [24 << 10]]},
    {"name": "16-bit sums", "thc": {"bits": 8} | FEEDBACK, "sizes": [[10_000]]},
    {
        "name": "tensors",
        "thc": {"bits": 4, "partition_bytes": 1 << 16} | FEEDBACK,
        "policy": {"bypass_elements": 0},
        "sizes": TENSORS,
    },
    {"name": "no error feedback", "thc": {"error_feedback": False}, "sizes": [[10_000, 12]]},
    {"name": "default", "thc": {}, "sizes": [[10_000, 12]]},
    {"name": "bfloat16", "thc": FEEDBACK, "sizes": [[10_000, 12]], "dtype": "bfloat16"},
    {"name": "float16", "thc": FEEDBACK, "sizes": [[10_000, 12]], "dtype": "float16"},
    {"name": "not finite", "thc": FEEDBACK, "sizes": [[10_000, 12], [5000]], "not_finite": [[1, 2, 0]]},
]
WARM_UP = {"name": "warm-up", "thc": {}, "policy": {"warmup_steps": 1}, "sizes": [[5000, 10], [300]], "steps": 2}
MIXED = PIECES | {"name": "one rank on a device", "policy": {}, "steps": 3, "kernels": ["host", "device"]}


def with_kernels(case: dict[str, Any], kernels: str) -> dict[str, Any]:
    return {"policy": {}, "steps": 3} | case | {"name": f"{case['name']}, {kernels}", "kernels": [kernels] * 2}


CASES = [*(with_kernels(case, kernels) for kernels in ("host", "device") for case in _CASES), MIXED]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Reports of both ranks: one launch for all cases."""
    with ParameterServer() as server:
        cases = [
            case | {"network": {"job": job, "servers": [server.address]}}
            for job, case in enumerate([*CASES, with_kernels(WARM_UP, "device")], start=1)
        ]
        return run_ranks(PROGRAM, 2, tmp_path_factory.mktemp("ranks"), settings={"cases": cases})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_averages_and_residuals_equal_the_simulation(reports: list[dict[str, Any]], case: dict[str, Any]) -> None:
    check_case(case | {"network": {}}, [report[case["name"]] for report in reports])


@pytest.mark.parametrize("kernels", ["host", "device"])
def test_lost_packets_are_sent_again(reports: list[dict[str, Any]], kernels: str) -> None:
    assert sum(report[f"faults, {kernels}"]["retransmissions"] for report in reports) > 0


def test_warm_up_is_exact(reports: list[dict[str, Any]]) -> None:
    for step in range(WARM_UP["steps"]):
        for number, buffers in enumerate(of_all_ranks(WARM_UP, 2, step)):
            exact = torch.stack([buffer.gradient for buffer in buffers]).sum(0) / 2
            averages = [report["warm-up, device"]["averages"][step][number] for report in reports]
            assert bits(averages[0]) == bits(averages[1])
            assert torch.allclose(averages[0], exact) == (step == 0 or number == 1)


def test_copies_between_device_and_host_are_codes_and_sums(reports: list[dict[str, Any]]) -> None:
    """At 4 bits half a byte a coordinate goes down and a byte up, instead of four each."""
    # Three pieces and two: blocks of 8192, and behind them of 4096, 2048, 1024 and 64 (40,000 is 625 times 64).
    blocks, pieces = (4 + 4) + 3, 3 + 2
    coordinates, steps = 40_000 + (24 << 10), 3
    for report in reports:
        # Codes alone: three steps of two compressed buffers, 4 bits a coordinate.
        assert report["pieces, host"]["sent_bytes"] > 3 * 65_012 // 2
        assert report["pieces, host"]["copied"] == [0, 0]
        down, up = report["no padding, device"]["copied"]
        figures_bytes = 8 + 8  # clamped coordinates, energy
        assert down == steps * (coordinates // 2 + 4 * blocks + figures_bytes * pieces)
        assert up == steps * (coordinates + 4 * blocks)
        assert (down + up) / (steps * coordinates) <= 1.6
        # With 12 and 300 elements that travel exactly, four bytes each in both directions.
        assert report["pieces, device"]["copied"][0] < steps * (0.52 * 65_012 + 4 * 312)
    host, device = (report[MIXED["name"]]["copied"] for report in reports)
    assert host == [0, 0]
    assert device == reports[0]["pieces, device"]["copied"]
