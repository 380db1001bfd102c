"""What the demo says beside its figures."""

from __future__ import annotations

import io

from rich.console import Console

from thc_lab.demo.report import LiveProgress, results_table
from thc_lab.demo.settings import DemoSettings, Progress, RunResult, Scheme


def test_progress_and_table_say_on_which_text_they_validate() -> None:
    """One does on a part of it, in a moment, the other on all: the numbers differ."""
    text = io.StringIO()
    console = Console(file=text, width=200)
    LiveProgress(console, DemoSettings()).update(Progress(Scheme.THC, 25, 2.5, 2.75))
    result = RunResult(Scheme.UNCOMPRESSED, coordinates=10)
    result.final_validation_loss = 2.5
    console.print(results_table([result]))
    shown = " ".join(text.getvalue().split())
    assert "loss 2.500, validation 2.750 (a part)" in text.getvalue()
    assert "validation loss, all (nats)" in text.getvalue()
    assert "of all held-out text here, of a part of it in progress and chart" in shown
