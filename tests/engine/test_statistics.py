"""StatsRecorder: sums, figures of a step, threads. The log of rank 0."""

import dataclasses
import logging
import math
import threading

import pytest

from byteps_thc._engine.statistics import CompressionStats, StatsRecorder
from byteps_thc._engine.steps import Steps
from byteps_thc._net.transport import PlainCollective


def test_nothing_recorded_yet() -> None:
    stats = StatsRecorder().snapshot()
    assert math.isnan(stats.ratio)
    assert math.isnan(stats.nmse)
    assert (stats.steps, stats.coordinates, stats.sent_bytes, stats.residual_norm) == (0, 0, 0, 0.0)


def test_ratio_counts_all_gradients_and_all_bytes() -> None:
    recorder = StatsRecorder()
    recorder.add_gradient(compressed=1000, uncompressed=10)
    recorder.add(sent_bytes=500, received_bytes=1000)  # 4-bit codes up, 8-bit sums down
    recorder.add(sent_bytes=40, received_bytes=40)  # 10 fp32
    stats = recorder.snapshot()
    assert stats.coordinates == 1000
    assert (stats.sent_bytes, stats.received_bytes) == (540, 1040)
    assert stats.ratio == pytest.approx(4 * 1010 / 540)


@pytest.mark.parametrize(
    ("plain", "volume_bytes"),
    [(PlainCollective.among_ranks(4, sharded=False), 2 * 4000), (PlainCollective.among_ranks(4, sharded=True), 4000)],
)
def test_no_compression_is_1_and_bf16_is_2(plain: PlainCollective, volume_bytes: int) -> None:
    for halves in (1, 2):
        recorder = StatsRecorder(plain)
        recorder.add_gradient(compressed=900, uncompressed=100)
        recorder.add_collective(volume_bytes // halves, 4)
        stats = recorder.snapshot()
        assert (stats.ratio, stats.ratio_to_bf16) == (halves, halves / 2)
        assert stats.as_dict()["ratio"] == halves


def test_errors_are_weighted_by_energy_not_averaged() -> None:
    recorder = StatsRecorder()
    recorder.step_began()
    recorder.add_quantization(coordinates=100, clamped=2, energy=100.0, lost_energy=4.0)
    recorder.add_quantization(coordinates=300, clamped=0, energy=300.0, lost_energy=5.0)
    stats = recorder.snapshot()
    assert stats.nmse == pytest.approx(9 / 400)
    assert stats.clamped_fraction == pytest.approx(2 / 400)
    assert stats.residual_norm == pytest.approx(3.0)


def test_a_piece_without_a_kept_residual_makes_nmse_unknown() -> None:
    recorder = StatsRecorder()
    recorder.step_began()
    recorder.add_quantization(coordinates=100, clamped=0, energy=1.0, lost_energy=0.1)
    recorder.add_quantization(coordinates=100, clamped=50, lost_energy=None)
    assert math.isnan(recorder.snapshot().nmse)
    assert recorder.snapshot().clamped_fraction == pytest.approx(0.25)
    recorder.step_began()
    recorder.add_quantization(coordinates=100, clamped=0, energy=1.0, lost_energy=0.1)
    assert recorder.snapshot().nmse == pytest.approx(0.1)


def test_a_step_forgets_what_is_of_the_last_step_and_nothing_else() -> None:
    recorder = StatsRecorder()
    recorder.step_began()
    recorder.add_gradient(compressed=8)
    recorder.add(sent_bytes=4, received_bytes=8)
    recorder.add_quantization(coordinates=8, clamped=1, energy=2.0, lost_energy=1.0)
    recorder.add_time("encode_ms", 1.0)
    recorder.add_time("communicate_ms", 2.0)
    recorder.add_time("decode_ms", 3.0)
    recorder.add_time("encode_ms", 1.0)
    recorder.add(retransmissions=5, lost_chunks=1)
    recorder.add(expected_contributions=40, missing_contributions=9)
    before = recorder.snapshot()
    assert (before.encode_ms, before.communicate_ms, before.decode_ms) == (2.0, 2.0, 3.0)
    recorder.step_began()
    after = recorder.snapshot()
    of_the_run = ("coordinates", "sent_bytes", "received_bytes", "ratio", "retransmissions", "lost_chunks")
    assert all(getattr(after, name) == getattr(before, name) for name in of_the_run)
    assert after.steps == 2
    assert (after.expected_contributions, after.missing_contributions) == (40, 9)
    of_the_step = ("clamped_fraction", "residual_norm", "encode_ms", "communicate_ms", "decode_ms")
    assert all(getattr(after, name) == 0.0 for name in of_the_step)
    assert math.isnan(after.nmse)


def test_threads_lose_no_counts() -> None:
    recorder = StatsRecorder()

    def work() -> None:
        for _ in range(5000):
            recorder.add_gradient(compressed=1, uncompressed=2)
            recorder.add_time("decode_ms", 0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    recorder.add(sent_bytes=4)
    stats = recorder.snapshot()
    assert stats.coordinates == 20_000
    assert stats.ratio == 60_000
    assert stats.decode_ms == 10_000


def test_the_line_has_every_figure() -> None:
    stats = CompressionStats(
        steps=300,
        ratio=7.96,
        ratio_to_bf16=3.98,
        nmse=0.01234,
        clamped_fraction=0.0039,
        residual_norm=1.5,
        encode_ms=10.04,
        communicate_ms=20.0,
        decode_ms=5.0,
        retransmissions=3,
        lost_chunks=2,
    )
    assert str(stats) == (
        "step 300: ratio 7.96 to fp32, 3.98 to bf16, NMSE 0.0123, clamped 0.39%, residual norm 1.5, "
        "encode 10.0 ms, communicate 20.0 ms, decode 5.0 ms, 3 retransmissions, 2 lost chunks"
    )
    without = str(dataclasses.replace(stats, nmse=math.nan))
    assert without.startswith("step 300: ratio 7.96 to fp32, 3.98 to bf16, clamped 0.39%, encode"), "no residuals"


def take_steps(every: int, rank: int) -> None:
    """Seven steps; the log is asked for once more behind each."""
    steps = Steps([], None, log_every=every, rank=rank, statistics=lambda: CompressionStats(steps=steps.count))
    for _ in range(7):
        steps.begin()
        steps.log()


def test_log_every_third_step_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="byteps_thc"):
        take_steps(every=3, rank=0)
    assert [record.message.split(":")[0] for record in caplog.records] == ["step 3", "step 6"]
    assert {(record.name, record.levelname) for record in caplog.records} == {("byteps_thc", "INFO")}


@pytest.mark.parametrize(("every", "rank"), [(1, 1), (0, 0)])
def test_no_line_on_other_ranks_or_when_off(every: int, rank: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="byteps_thc"):
        take_steps(every, rank)
    assert caplog.records == []
