"""Missing compression is seen: one warning each, and a ratio that counts all bytes."""

from pathlib import Path
from typing import Any

import pytest

from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("visible_rank.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    first, second = run_ranks(PROGRAM, 2, tmp_path_factory.mktemp("visible"))
    for name, report in second.items():
        assert report == {"warnings": [], "result": first[name]["result"]}, "rank 0 warns alone"
    return first


def test_no_warning_without_a_reason(report: dict[str, Any]) -> None:
    assert report["nothing_is_wrong"]["warnings"] == []
    assert report["nothing_is_wrong"]["result"] > 6


def test_fsdp_modules_that_were_sharded_later(report: dict[str, Any]) -> None:
    late = "() was called before fully_shard() of '(root)', 33% of the model's elements: they travel uncompressed"
    callers = [warning[: warning.index(late)] for warning in report["root_is_sharded_late"]["warnings"]]
    assert callers == ["compress_all_gather", "compress_reduce_scatter"]
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
