"""`thc compare` against bench_ddp.py: the predicted communication of a step beside the measured, on the same machine.

Needs root, as bench_ddp.py does.

    sudo PYTHONPATH=evaluation:scripts .venv/bin/python evaluation/benchmarks/bench_compare.py
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from bench_ddp import PARAMETERS, RANKS, Run, measure
from section import publish, table

from thc_lab.shaped_network import ShapedNetwork

#: bench_ddp's schemes by the names that thc compare has. The one server's link is as fast as four.
NAMES = {
    "fp32": "fp32",
    "bf16": "bf16",
    "power_sgd": "PowerSGD, rank 4",
    "thc_5": "THC 5+5",
    "thc_4": "THC 4+4",
    "thc_ps": "THC, servers",
}
TOLERANCE = 0.25
#: A round of all schemes takes half a minute there.
SLOW_GBIT = 0.1


def predict(gbits: list[float]) -> dict[str, dict[str, float]]:
    """Return milliseconds, by the name of the way and by the rate as JSON has it."""
    command = [sys.executable, "-c", "from byteps_thc._cli.cli import app; app()", "compare", "--json"]
    command += ["--parameters", str(PARAMETERS), "--workers", str(RANKS), "--servers", str(RANKS)]
    command += ["--cores", str(len(os.sched_getaffinity(0)) / RANKS)]
    command += ["--bandwidth", ",".join(f"{gbit * 1000:g}M" for gbit in gbits)]
    answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return {way["name"]: {bps: 1e3 * step_s for bps, step_s in way["step_s"].items()} for way in answer["ways"]}


def compared(run: Run, predicted: dict[str, dict[str, float]]) -> list[list[str]]:
    """Return lines of the table at a rate."""
    measured = {m.scheme: m.communication_ms for m in run.measurements}
    lines = []
    for scheme, name in NAMES.items():
        own_ms, measured_ms = predicted[name][f"{run.gbit * 1e9:g}"], measured[scheme]
        ratio = own_ms / measured_ms
        met = "yes" if 1 / (1 + TOLERANCE) <= ratio <= 1 + TOLERANCE else "**no**"
        lines.append([f"{run.gbit:g}", name, f"{own_ms:,.0f} ms", f"{measured_ms:,.0f} ms", f"{ratio:.2f}", met])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gbit", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--repeats", type=int, default=7, help="above 0.1 Gb/s; a third of them there")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    predicted = predict(args.gbit)
    cells = [["Gb/s", "", "predicted", "measured", "predicted / measured", "within a quarter"]]
    with ShapedNetwork(RANKS + 1) as network:
        for gbit in args.gbit:
            run = measure(network, gbit, args.repeats if gbit > SLOW_GBIT else max(1, args.repeats // 3))
            cells += compared(run, predicted)
    publish(table(cells, "rl"), args.json)


if __name__ == "__main__":
    main()
