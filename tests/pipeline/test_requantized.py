"""Ranks that requantize sums: the same bits on all of them, those of one owner of all sums in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gradients import TENSORS, bits, check_case
from ranks import run_ranks

ENGINES, FRONT_ENDS = (Path(__file__).with_name(f"{program}_rank.py") for program in ("engine", "requantized"))
RANKS = 4

_CASES: list[dict[str, Any]] = [
    {"name": "5 + 6", "thc": {"bits": 5, "down_bits": 6, "error_feedback": True}, "sizes": [[70_000, 30, 5000], [9]]},
    {
        "name": "tiny",
        "thc": {"rotation_block": 64, "total_bits": 11, "error_feedback": True},
        "policy": {"bypass_elements": 0},
        "sizes": [[1], [], [63], [65, 1], [1024], [1025]],
    },
    {
        "name": "pieces",
        "thc": {"partition_bytes": 1 << 16, "rotation_block": 4096, "total_bits": 12, "error_feedback": True},
        "sizes": [[100_000], [50_001, 1025]],
    },
    {"name": "4 + 4", "thc": {"down_bits": 4}, "sizes": [[10_000]]},
    {"name": "7 + 7", "thc": {"bits": 7, "down_bits": 7}, "sizes": [[10_000]]},
    {"name": "8 + 8", "thc": {"total_bits": 16}, "sizes": [[10_000]]},
    {"name": "8-bit sums, 8 down", "thc": {"granularity": 60, "down_bits": 8}, "sizes": [[10_000]]},
    {"name": "paper's table", "thc": {"granularity": 30, "p": 1 / 32, "down_bits": 5}, "sizes": [[10_000]]},
    {"name": "no error feedback", "thc": {"error_feedback": False, "total_bits": 11}, "sizes": [[10_000, 12]]},
    {
        "name": "tensors in pieces",
        "thc": {"total_bits": 11, "error_feedback": True, "partition_bytes": 1 << 15, "rotation_block": 1024},
        "policy": {"bypass_elements": 0},
        "sizes": TENSORS,
    },
    {"name": "float16", "thc": {"total_bits": 11, "error_feedback": True}, "sizes": [[10_000, 12]], "dtype": "float16"},
    {
        "name": "bfloat16",
        "thc": {"total_bits": 11, "error_feedback": True},
        "sizes": [[10_000, 12]],
        "dtype": "bfloat16",
    },
    {
        "name": "residuals of bfloat16",
        "thc": {"total_bits": 11, "error_feedback": True, "residual_dtype": "bfloat16"},
        "sizes": [[60_000, 12, 5000], [300]],
        "not_finite": [[1, 1, 0]],
    },
    {
        "name": "three threads",
        "thc": {"total_bits": 11, "error_feedback": True},
        "policy": {"threads": 3},
        "sizes": [[1_000_003]],
    },
    {
        "name": "pieces that end within a group",
        "thc": {"partition_bytes": 1 << 11, "rotation_block": 64, "total_bits": 14, "error_feedback": True},
        "sizes": [[1100, 64]],
    },
    {
        "name": "not finite",
        "thc": {"total_bits": 11, "error_feedback": True},
        "sizes": [[10_000, 12], [5000]],
        "not_finite": [[1, 1, 0]],
    },
]
CASES = [{"policy": {}, "steps": 2} | case | {"thc": {"error_feedback": True} | case["thc"]} for case in _CASES]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What all ranks report of the cases: one launch for all."""
    return run_ranks(ENGINES, RANKS, tmp_path_factory.mktemp("engines"), settings={"cases": CASES})


@pytest.fixture(scope="module")
def on_device(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The same of three ranks with the engine for devices, on CPU tensors."""
    cases = [case | {"device": True} for case in CASES]
    return run_ranks(ENGINES, 3, tmp_path_factory.mktemp("device"), settings={"cases": cases})


@pytest.fixture(scope="module")
def of_front_ends(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What all ranks report of everything else."""
    return run_ranks(FRONT_ENDS, RANKS, tmp_path_factory.mktemp("front_ends"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_averages_equal_the_simulation(reports: list[dict[str, Any]], case: dict[str, Any]) -> None:
    check_case(case, [report[case["name"]] for report in reports])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_averages_of_the_device_engine_equal_the_simulation(
    on_device: list[dict[str, Any]], case: dict[str, Any]
) -> None:
    check_case(case, [report[case["name"]] for report in on_device])


@pytest.mark.parametrize("front_end", ["reducer", "ddp", "mesh"])
def test_front_ends(of_front_ends: list[dict[str, Any]], front_end: str) -> None:
    averages = [report[front_end]["average"] for report in of_front_ends]
    assert all(bits(average) == bits(averages[0]) for average in averages)
    for report in of_front_ends:
        assert 1e-4 < report[front_end]["nmse"] < 8e-3


def test_traffic(reports: list[dict[str, Any]]) -> None:
    """Codes in shards of 256, and of every shard the codes of its sums, scales and what is left to 16 bytes."""
    for name, up, down in [("4 + 4", 4, 4), ("7 + 7", 7, 7), ("8 + 8", 8, 8)]:
        shard = -(-10_048 // (256 * RANKS)) * 256
        sums = -(-(shard * down // 8 + 2 * shard // 256) // 16) * 16
        norms = 5 + 2  # blocks of 8192, 1024, 512, 256 and 64; fingerprint
        piece = 4 * norms * (RANKS - 1) + (shard * up // 8 + sums) * (RANKS - 1)
        for report in reports:
            assert report[name]["sent_bytes"] == 2 * piece


def test_checkpoints(of_front_ends: list[dict[str, Any]]) -> None:
    """Those from before there was down_bits have exact sums."""
    for report in of_front_ends:
        said = report["checkpoints"]
        assert [name for name, error in said.items() if not error] == [
            "old in exact", "old in asked", "exact in asked", "pair in requantized"
        ]  # fmt: skip
        for name in ("old in requantized", "requantized in exact"):
            assert "state does not fit: its config has" in said[name]
        assert "down_bits None, here 6" in said["old in requantized"]
        assert "down_bits 6, here None" in said["requantized in exact"]


def test_settings_are_compared(of_front_ends: list[dict[str, Any]]) -> None:
    for report in of_front_ends:
        assert "down_bits is 5 on rank 0, 6 on rank 1" in report["different"]
