"""The rank-0 log line, TensorBoard's scalars and the figures that wandb gets."""

from __future__ import annotations

import dataclasses
import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest

from byteps_thc._engine.statistics import CompressionStats, RankZeroLog, StatsWriter
from byteps_thc._scheme.errors import ConfigurationError

STATS = CompressionStats(
    steps=1, coordinates=1000, sent_bytes=500, received_bytes=1000, ratio=8.0, ratio_to_bf16=4.0, nmse=0.01
)


def test_log_every_third_step_once(caplog: pytest.LogCaptureFixture) -> None:
    log = RankZeroLog(every=3, rank=0)
    with caplog.at_level(logging.INFO, logger="byteps_thc"):
        for step in (0, 1, 2, 3, 3, 4, 5, 6, 7):
            log.update(dataclasses.replace(STATS, steps=step))
    assert [record.message.split(":")[0] for record in caplog.records] == ["step 3", "step 6"]
    assert {(record.name, record.levelname) for record in caplog.records} == {("byteps_thc", "INFO")}


def test_a_line_has_no_figures_of_residuals_that_nobody_keeps() -> None:
    assert "NMSE 0.01, clamped 0.00%, residual norm 0, encode" in str(STATS)
    without = str(dataclasses.replace(STATS, nmse=math.nan))
    assert without.startswith("step 1: ratio 8.00 to fp32, 4.00 to bf16, clamped 0.00%, encode")


@pytest.mark.parametrize(("every", "rank"), [(1, 1), (0, 0)])
def test_no_line_on_other_ranks_or_when_off(every: int, rank: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="byteps_thc"):
        RankZeroLog(every=every, rank=rank).update(STATS)
    assert caplog.records == []


def test_negative_interval_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="log_every"):
        RankZeroLog(every=-1, rank=0)


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as summary_writer:
        writer = StatsWriter(summary_writer)
        writer.write(STATS, 10)
        writer.write(dataclasses.replace(STATS, steps=2, nmse=math.nan, sent_bytes=123_456_789_012), 20)

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    fields = {f"thc/{field.name}" for field in dataclasses.fields(CompressionStats)}
    assert set(events.Tags()["scalars"]) == fields
    curves = {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in fields}
    assert curves["thc/ratio"] == [(10, 8.0), (20, 8.0)]
    assert curves["thc/nmse"] == [(10, pytest.approx(0.01))]  # NaN is left out
    assert curves["thc/sent_bytes"] == [(10, 500), (20, pytest.approx(123_456_789_012, rel=1e-6))]


def test_a_run_of_wandb_gets_all_figures_of_a_step_at_once() -> None:
    """tests/examples/test_frameworks.py logs to the real one."""
    logged: list[tuple[dict[str, float], int]] = []

    class Run:
        def log(self, data: dict[str, float], step: int) -> None:
            logged.append((data, step))

    writer = StatsWriter(Run())
    writer.write(STATS, 10)
    writer.write(dataclasses.replace(STATS, steps=2, nmse=math.nan), 20)
    (first, first_step), (second, second_step) = logged
    assert (first_step, second_step) == (10, 20)
    assert first == {f"thc/{field}": value for field, value in STATS.as_dict().items()}
    assert first.keys() - second.keys() == {"thc/nmse"}


def test_statistics_do_not_need_torch() -> None:
    code = "import sys; import byteps_thc._engine.statistics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False, timeout=60).returncode == 0
