"""Sentences of the demo beside its figures."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from thc_lab.demo.gain import gain_table, seconds_to, sentence
from thc_lab.demo.links import NO_LINKS, Links
from thc_lab.demo.report import LiveProgress, results_table
from thc_lab.demo.settings import DemoSettings, Progress, RunResult, Scheme


def test_progress_and_table_say_on_which_text_they_validate() -> None:
    """One works on a part, in a moment, the other on all: the numbers differ."""
    text = io.StringIO()
    console = Console(file=text, width=200)
    LiveProgress(console, DemoSettings()).update(Progress(Scheme.THC, 25, 2.5, 2.75))
    result = RunResult(Scheme.FP32, coordinates=10)
    result.final_validation_loss = 2.5
    console.print(results_table([result]))
    shown = " ".join(text.getvalue().split())
    assert "loss 2.500, validation 2.750 (a part)" in text.getvalue()
    assert "validation loss, all (nats)" in text.getvalue()
    assert "of all held-out text here, of a part of it in progress and chart" in shown


def run(scheme: Scheme, losses: list[float], step_s: float, sent_bytes: float) -> RunResult:
    """Return a run of 4 steps to a loss, one after another, with as many bytes in all."""
    result = RunResult(scheme, coordinates=10, step_s=[step_s] * len(losses), wall_s=step_s * len(losses))
    result.validation_loss = list(enumerate(losses, 1))
    result.final_validation_loss, result.sent_bytes = losses[-1], sent_bytes
    return result


FP32 = run(Scheme.FP32, [4.0, 3.0, 2.5, 2.0], 10, 800e6)
RANKS = run(Scheme.THC_RANKS, [4.0, 3.1, 2.51, 2.01], 4, 125e6)
HOSTS = Links((None,), "Links: slow.")  # type: ignore[arg-type]  # nobody asks who


def test_time_to_a_loss_is_between_two_measurements() -> None:
    assert seconds_to(FP32, 2.02) == pytest.approx(30 + 10 * 0.48 / 0.5)
    assert seconds_to(FP32, 4.5) == 10
    assert seconds_to(FP32, 1.9) is None
    assert seconds_to(FP32, None) is None


def test_gain_is_told_in_a_sentence() -> None:
    assert sentence([FP32, RANKS], HOSTS) == (
        "THC among ranks came within 1 % of fp32's last loss after 16 s, fp32 after 40 s: 2.5x faster, with 6.4x fewer "
        "bytes; its last loss is 0.5 % above fp32's."
    )
    slow = replace(RANKS, step_s=[20.0] * 4)
    assert "2.0x slower" in sentence([FP32, slow], HOSTS)
    worse = run(Scheme.THC_RANKS, [4.0, 3.5, 3.0, 2.5], 5, 125e6)
    assert "trained 4 steps 2.0x faster than fp32" in sentence([FP32, worse], HOSTS)
    assert "25.0 % above fp32's. Links without a limit say nothing" in sentence([FP32, worse], NO_LINKS)
    assert sentence([FP32], HOSTS) == sentence([RANKS], HOSTS) == ""


def test_table_of_gains() -> None:
    text = io.StringIO()
    console = Console(file=text, width=80)
    never = run(Scheme.BF16, [4.0, 3.5, 3.0, 2.5], 5, 400e6)
    console.print(gain_table([FP32, never, RANKS]))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.getvalue().splitlines() if "│" in line]
    assert rows == [
        ["fp32", "2.0000", "40.0", "39.6", "800.0", "1.00x"],
        ["bf16", "2.5000", "20.0", "never", "400.0", "2.00x"],
        ["THC among ranks", "2.0100", "16.0", "15.9", "125.0", "6.40x"],
    ]
    assert "2.020: the last loss of fp32 plus 1 %" in text.getvalue()
