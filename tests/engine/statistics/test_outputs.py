"""The rank-0 log line."""

from __future__ import annotations

import dataclasses
import logging
import math
import subprocess
import sys

import pytest

from byteps_thc._engine.statistics import CompressionStats, require_log_interval
from byteps_thc._engine.steps import Steps
from byteps_thc._scheme.errors import ConfigurationError

STATS = CompressionStats(
    steps=1, coordinates=1000, sent_bytes=500, received_bytes=1000, ratio=8.0, ratio_to_bf16=4.0, nmse=0.01
)


def take_steps(every: int, rank: int) -> None:
    """Seven steps; the log is asked for once more behind each."""
    steps = Steps(
        [], None, log_every=every, rank=rank, statistics=lambda: dataclasses.replace(STATS, steps=steps.count)
    )
    for _ in range(7):
        steps.begin()
        steps.log()


def test_log_every_third_step_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="byteps_thc"):
        take_steps(every=3, rank=0)
    assert [record.message.split(":")[0] for record in caplog.records] == ["step 3", "step 6"]
    assert {(record.name, record.levelname) for record in caplog.records} == {("byteps_thc", "INFO")}


def test_a_line_has_no_figures_of_residuals_that_nobody_keeps() -> None:
    assert "NMSE 0.01, clamped 0.00%, residual norm 0, encode" in str(STATS)
    without = str(dataclasses.replace(STATS, nmse=math.nan))
    assert without.startswith("step 1: ratio 8.00 to fp32, 4.00 to bf16, clamped 0.00%, encode")


@pytest.mark.parametrize(("every", "rank"), [(1, 1), (0, 0)])
def test_no_line_on_other_ranks_or_when_off(every: int, rank: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="byteps_thc"):
        take_steps(every, rank)
    assert caplog.records == []


def test_negative_interval_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="log_every"):
        require_log_interval(-1)


def test_statistics_do_not_need_torch() -> None:
    code = "import sys; import byteps_thc._engine.statistics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False, timeout=60).returncode == 0
