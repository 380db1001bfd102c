"""What `thc break-even` promises is what a DDP step on shaped links shows: the same benchmark that the docs quote.

It takes three minutes: .venv/bin/pytest tests/tools/break_even/test_promise.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from byteps_thc.tools.cli import app

ROOT = Path(__file__).parents[3]
RANKS = 4
#: How far a measured gain may be outside of the promised range.
TOLERANCE = 0.25


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ or os.getloadavg()[0] > 1,
    reason="compares times: run this file alone, on an idle machine",
)
def test_gains_over_bf16_and_fp32(tmp_path: Path) -> None:
    path = tmp_path / "ddp.json"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/evaluation:{ROOT}/tests/lib"}
    command = [sys.executable, str(ROOT / "evaluation/benchmarks/bench_ddp.py"), "--gbit", "1", "10", "--repeats", "7"]
    subprocess.run([*command, "--json", str(path)], env=environment, check=True, timeout=500)
    measured = {run["gbit"]: run for run in json.loads(path.read_text())["runs"]}
    options = ["--workers", str(RANKS), "--ranks-per-host", str(RANKS), "--bandwidth", "1G,10G", "--json"]
    answer = json.loads(CliRunner().invoke(app, ["break-even", *options]).stdout)
    promised = {scheme["name"]: scheme["steps"] for scheme in answer["schemes"]}
    wrong = []
    for i, gbit in enumerate((1.0, 10.0)):
        times = {row["scheme"]: row["communication_ms"] for row in measured[gbit]["measurements"]}
        for other in ("fp32", "bf16"):
            gains = [promised[other][i][case] / promised["THC"][i][case] for case in ("overlapped_s", "serial_s")]
            found = times[other] / times["thc"]
            if not min(gains) / (1 + TOLERANCE) <= found <= max(gains) * (1 + TOLERANCE):
                wrong.append(
                    f"{gbit:g} Gb/s, {other}: promised {min(gains):.2f} .. {max(gains):.2f}, found {found:.2f}"
                )
    assert not wrong, wrong
