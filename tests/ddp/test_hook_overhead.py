"""The hook only queues a bucket: the work is done by other threads."""

from __future__ import annotations

from pathlib import Path

from ranks import run_ranks

TARGET_MS = 0.2


def test_hook_keeps_backward_for_a_fifth_of_a_millisecond_at_most(tmp_path: Path) -> None:
    reports = run_ranks(Path(__file__).with_name("hook_overhead_rank.py"), 2, tmp_path)
    for report in reports:
        assert report["buckets"] >= 2
        assert report["mean_ms"] < TARGET_MS
