"""Compression that is not there is seen: one warning each, and a ratio that counts all bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

PROGRAM = Path(__file__).with_name("visible_rank.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    first, second = run_ranks(PROGRAM, 2, tmp_path_factory.mktemp("visible"))
    assert second["all_is_small"]["warnings"] == [], "rank 0 warns alone"
    assert first == second | {"all_is_small": first["all_is_small"]}
    return first


def test_no_warning_without_a_reason(report: dict[str, Any]) -> None:
    assert report["nothing_is_wrong"]["warnings"] == []
    assert report["nothing_is_wrong"]["result"] > 6


def test_fsdp_modules_that_were_sharded_later(report: dict[str, Any]) -> None:
    (warning,) = report["root_is_sharded_late"]["warnings"]
    assert "'(root)', 33% of the model's elements" in warning
    assert 2 < report["root_is_sharded_late"]["result"] < 3, "a third travels as it is: 1 / (1/3 + 2/3 / 8) at most"


def test_replicas_of_modules_that_were_sharded_later_would_drift(report: dict[str, Any]) -> None:
    assert "'(root)'" in report["replicas_are_sharded_late"]["result"]
    assert "after the last fully_shard()" in report["replicas_are_sharded_late"]["result"]


def test_a_state_that_no_hook_calls(report: dict[str, Any]) -> None:
    (warning,) = report["no_hook_calls_the_state"]["warnings"]
    assert "no hook calls it" in warning


def test_all_parameters_are_small(report: dict[str, Any]) -> None:
    warnings = report["all_is_small"]["warnings"]
    assert len(warnings) == 2, "the models' and the reducer's, which differ in numbers"
    assert all("bypass_elements=1048576" in warning for warning in warnings)
