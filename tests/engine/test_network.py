"""The network engine on real ranks and a real thc-ps, which loses packets on purpose.

Also with the GPU's way through it: device kernels, for which those of the CPU stand in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import TENSORS, bits, check_case, of_all_ranks
from ranks import run_ranks

from byteps_thc._cli.launch import ParameterServer

PROGRAM = Path(__file__).with_name("engine_rank.py")
EXACT_NOTHING = {"policy": {"bypass_elements": 0}}
PIECES = {"name": "pieces", "thc": {"partition_bytes": 1 << 16}, "sizes": [[60_000, 12], [300], [5000]]}
ON_DEVICE: list[dict[str, Any]] = [
    PIECES,
    PIECES | {"name": "one rank on a device", "kernels": ["host", "device"]},
    PIECES | {"name": "faults", "thc": {}, "faults": {"drop": 0.02, "reorder": 0.02}},
    {"name": "no padding", "thc": {"partition_bytes": 1 << 16}, "sizes": [[40_000], [24 << 10]]},
    {"name": "16-bit sums", "thc": {"bits": 8}, "sizes": [[10_000]]},
    {"name": "tensors", "thc": {"bits": 4, "partition_bytes": 1 << 16}, "sizes": TENSORS} | EXACT_NOTHING,
    {"name": "no error feedback", "thc": {"error_feedback": False}, "sizes": [[10_000, 12]]},
    {"name": "bfloat16", "thc": {}, "sizes": [[10_000, 12]], "dtype": "bfloat16"},
    {"name": "float16", "thc": {}, "sizes": [[10_000, 12]], "dtype": "float16"},
    {"name": "not finite", "thc": {}, "sizes": [[10_000, 12], [5000]], "not_finite": [[1, 2, 0]]},
]
FEEDBACK = {"error_feedback": True}
ON_DEVICE = [case | {"thc": FEEDBACK | case["thc"]} for case in ON_DEVICE]
ON_DEVICE.append({"name": "default", "thc": {}, "sizes": [[10_000, 12]]})
WARM_UP = {"name": "warm-up", "thc": {}, "policy": {"warmup_steps": 1}, "sizes": [[5000, 10], [300]], "steps": 2}


def test_averages_equal_the_simulation(thc_ps: ParameterServer, tmp_path: Path) -> None:
    common = {"policy": {}, "steps": 3, "sizes": [[60_000, 12], [300], [5000]]}
    cases = [
        common | {"name": "reliable", "thc": {"partition_bytes": 1 << 16}, "network": {"job": 1}},
        common | {"name": "faults", "thc": {}, "network": {"job": 2}, "faults": {"drop": 0.02, "reorder": 0.02}},
        common | {"name": "16-bit sums", "thc": {"bits": 8}, "network": {"job": 3}},
        common | {"name": "tensors", "thc": {"bits": 4}, "network": {"job": 5}, "sizes": TENSORS} | EXACT_NOTHING,
    ]
    cases = [case | {"thc": FEEDBACK | case["thc"]} for case in cases]
    cases.append(common | {"name": "default", "thc": {}, "network": {"job": 5}})
    for case in cases:
        case["network"]["servers"] = [thc_ps.address]
    reports = run_ranks(PROGRAM, 2, tmp_path, settings={"cases": cases})
    for case in cases:
        check_case(case, [report[case["name"]] for report in reports])
    assert sum(report["faults"]["retransmissions"] for report in reports) > 0
    # Codes alone: three steps of two compressed buffers, 4 bits a coordinate.
    assert all(report["reliable"]["sent_bytes"] > 3 * 65_012 // 2 for report in reports)
    assert all(report["reliable"]["copied"] == [0, 0] for report in reports)


@pytest.fixture
def on_device(thc_ps: ParameterServer, tmp_path: Path) -> list[dict[str, Any]]:
    """What both ranks report of all cases with device kernels."""
    cases = [
        {"policy": {}, "steps": 3, "kernels": ["device", "device"]}
        | case
        | {"network": {"job": job, "servers": [thc_ps.address]}}
        for job, case in enumerate([*ON_DEVICE, WARM_UP], start=1)
    ]
    return run_ranks(PROGRAM, 2, tmp_path, settings={"cases": cases})


def test_device_kernels_have_the_same_averages_and_residuals(on_device: list[dict[str, Any]]) -> None:
    for case in ON_DEVICE:
        network = {"policy": {}, "steps": 3, "network": {}} | case
        check_case(network, [report[case["name"]] for report in on_device])
    for step in range(WARM_UP["steps"]):
        for number, buffers in enumerate(of_all_ranks(WARM_UP, 2, step)):
            exact = torch.stack([buffer.gradient for buffer in buffers]).sum(0) / 2
            averages = [report["warm-up"]["averages"][step][number] for report in on_device]
            assert bits(averages[0]) == bits(averages[1])
            assert torch.allclose(averages[0], exact) == (step == 0 or number == 1)
    assert sum(report["faults"]["retransmissions"] for report in on_device) > 0
    copies_of_codes_and_sums(on_device)


def copies_of_codes_and_sums(reports: list[dict[str, Any]]) -> None:
    """At 4 bits half a byte a coordinate goes down and a byte up, instead of four each."""
    # Three pieces and two: blocks of 8192, and behind them of 4096, 2048, 1024 and 64 (40,000 is 625 of these).
    blocks, pieces = (4 + 4) + 3, 3 + 2
    coordinates, steps = 40_000 + (24 << 10), 3
    for report in reports:
        down, up = report["no padding"]["copied"]
        figures_bytes = 8 + 8  # clamped coordinates, energy
        assert down == steps * (coordinates // 2 + 4 * blocks + figures_bytes * pieces)
        assert up == steps * (coordinates + 4 * blocks)
        assert (down + up) / (steps * coordinates) <= 1.6
        # With 12 and 300 elements that travel exactly, four bytes each in both directions.
        assert report["pieces"]["copied"][0] < steps * (0.52 * 65_012 + 4 * 312)
    host, device = (report["one rank on a device"]["copied"] for report in reports)
    assert host == [0, 0]
    assert device == reports[0]["pieces"]["copied"]
