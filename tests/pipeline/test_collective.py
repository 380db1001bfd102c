"""The collective engine on real gloo ranks: the same to the bit as n Compressors in one process.

And its twin for devices, on CPU tensors with the CPU's kernels; tests/gpu has those of the GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import bits, check_case, of_all_ranks
from ranks import run_ranks

PROGRAM = Path(__file__).with_name("engine_rank.py")

#: name, ThcConfig, CompressionPolicy, parameter sizes of the buffers, further settings
_CASES: list[dict[str, Any]] = [
    {"name": "residuals", "thc": {}, "sizes": [[70_000, 30, 5000], [9]]},
    {
        "name": "tiny",
        "thc": {"rotation_block": 64},
        "policy": {"bypass_elements": 0},
        "sizes": [[1], [], [63], [65, 1]],
    },
    {
        "name": "pieces",
        "thc": {"partition_bytes": 1 << 16, "rotation_block": 4096},
        "sizes": [[100_000], [50_001, 1025]],
    },
    {"name": "5-bit sums", "thc": {"bits": 2, "granularity": 5}, "sizes": [[10_000]]},
    {"name": "6-bit sums", "thc": {"granularity": 15}, "sizes": [[10_000]]},
    {"name": "7 or 8-bit sums", "thc": {"granularity": 60}, "sizes": [[10_000]]},
    {"name": "8 or 9-bit sums", "thc": {"granularity": 127}, "sizes": [[10_000]]},
    {"name": "narrow sums, 16 bits in memory", "thc": {"value_bits": 16}, "sizes": [[10_000]]},
    {"name": "9 or 10-bit sums", "thc": {"granularity": 200}, "sizes": [[10_000]]},
    {"name": "8-bit codes", "thc": {"bits": 8}, "sizes": [[10_000, 7]]},
    {"name": "3-bit codes", "thc": {"bits": 3}, "sizes": [[10_007]]},
    {"name": "1-bit codes", "thc": {"bits": 1}, "sizes": [[10_007]]},
    {"name": "no error feedback", "thc": {"error_feedback": False}, "sizes": [[10_000, 12]]},
    {
        "name": "residuals of bfloat16",
        "thc": {"error_feedback": True, "residual_dtype": "bfloat16"},
        "sizes": [[60_000, 12, 300, 5000], [9000]],
        "not_finite": [[1, 2, 0]],
    },
    {"name": "uniform", "thc": {"uniform_table": True}, "sizes": [[10_000, 12]]},
    {"name": "known errors subtracted", "thc": {"subtract_rounding": True}, "sizes": [[60_000, 12], [300], [5000]]},
    {
        "name": "wider clamp where ranks agree",
        "thc": {"error_feedback": True, "adaptive_clamp": True},
        "sizes": [[60_000, 12], [5000]],
        "alike": True,
    },
    {"name": "float16", "thc": {}, "sizes": [[10_000, 12]], "dtype": "float16"},
    {"name": "bfloat16", "thc": {}, "sizes": [[10_000, 12]], "dtype": "bfloat16"},
    {"name": "norms in a ring", "thc": {"rotation_block": 64}, "sizes": [[600_000]], "not_finite": [[1, 2, 0]]},
    # Larger than what a thread takes by itself, at the least: 2^18 coordinates to encode in two.
    {"name": "three threads", "thc": {}, "policy": {"threads": 3}, "sizes": [[1_000_003]]},
    {
        "name": "excluded",
        "thc": {"partition_bytes": 1 << 16, "rotation_block": 4096},
        "policy": {"exclude": ["0.1", "1.0", "2.0", "2.1"]},
        "sizes": [[30_000, 40_000, 12, 5000], [20_000, 7, 9000], [5000, 6000]],
    },
    {"name": "not finite", "thc": {}, "sizes": [[10_000, 12], [5000]], "not_finite": [[1, 2, 0]]},
]
#: Of all cases that do not say otherwise: residuals, and sums as they are.
EXACT = {"error_feedback": True, "down_bits": None}
CASES = [{"policy": {}, "steps": 3} | case | {"thc": EXACT | case["thc"]} for case in _CASES]
CASES.append({"name": "default", "thc": {}, "policy": {}, "steps": 3, "sizes": [[70_000, 30, 5000], [9]]})
WARM_UP = {
    "name": "warm-up",
    "thc": {},
    "policy": {"warmup_steps": 1, "stop_step": 3},
    "sizes": [[5000, 10], [300]],
    "steps": 5,
}


@pytest.fixture(scope="module", params=["2 ranks", "4 ranks", "3 ranks, device engine"])
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What all ranks report: one launch for all cases."""
    device = "device" in request.param
    settings = {"cases": [case | {"device": device} for case in (*CASES, WARM_UP)]}
    return run_ranks(PROGRAM, int(request.param[0]), tmp_path_factory.mktemp("ranks"), settings=settings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_averages_equal_the_simulation(reports: list[dict[str, Any]], case: dict[str, Any]) -> None:
    check_case(case, [report[case["name"]] for report in reports])


def test_averages_are_near_the_exact_ones(reports: list[dict[str, Any]]) -> None:
    """The bound does not come from the simulation: a clamped coordinate misses at most what error feedback keeps."""
    case = CASES[0]
    ranks = len(reports)
    buffers = of_all_ranks(case, ranks, 0)[0]
    exact = torch.stack([buffer.gradient for buffer in buffers]).mean(0)
    average = reports[0]["residuals"]["averages"][0][0]
    error = (average - exact).square().sum() / exact.square().sum()
    assert 0 < error < 0.2
    kept = torch.stack([torch.cat(list(report["residuals"]["residuals"].values())) for report in reports])
    assert kept.abs().sum() > 0
    torch.testing.assert_close(average[70_000:70_030], exact[70_000:70_030])  # a small parameter


def test_schedule(reports: list[dict[str, Any]]) -> None:
    ranks = len(reports)
    for step in range(WARM_UP["steps"]):
        for number, buffers in enumerate(of_all_ranks(WARM_UP, ranks, step)):
            exact = torch.stack([buffer.gradient for buffer in buffers]).sum(0) / ranks
            averages = [report["warm-up"]["averages"][step][number] for report in reports]
            assert all(bits(average) == bits(averages[0]) for average in averages)
            near = torch.allclose(averages[0], exact, rtol=1e-6, atol=1e-6)
            assert near == (number == 1 or not 1 <= step < 3), (step, number)


@pytest.mark.parametrize(("case", "granularity"), [("6-bit sums", 15), ("9 or 10-bit sums", 200)])
def test_statistics(reports: list[dict[str, Any]], case: str, granularity: int) -> None:
    ranks = len(reports)
    for report in reports:
        figures = report[case]
        codes = -(-10_048 // (64 * ranks)) * 64 * ranks  # 10,000 and padding, in shards
        norms = 5 + 2  # blocks of 8192, 1024, 512, 256 and 64; fingerprint
        sum_bits = (granularity * ranks).bit_length()
        piece = 4 * norms * (ranks - 1) + (codes // 2 + codes * sum_bits // 8) * (ranks - 1) // ranks
        assert figures["sent_bytes"] == 3 * piece
        residuals = torch.cat(list(figures["residuals"].values()))
        assert residuals.dtype == torch.float32
        assert figures["residual_norm"] == pytest.approx(float(residuals.norm()), rel=1e-4)
        assert 0.005 < figures["nmse"] < 0.5


def test_statistics_of_bfloat16(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        figures = report["residuals of bfloat16"]
        residuals = torch.cat(list(figures["residuals"].values()))
        assert residuals.dtype == torch.bfloat16
        assert figures["residual_norm"] == pytest.approx(float(residuals.float().norm()), rel=1e-4)
