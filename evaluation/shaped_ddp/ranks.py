"""Ranks on the hosts of a shaped network, and their results."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from byteps_thc._cli.launch import KEEP_MEMORY
from thc_lab.shaped_network import Host

DEADLINE_S = 300.0
#: Among the schemes of a rank's results: the first one's step without averaging.
ALONE = "alone"
#: For each rank: scheme -> steps.Measured as a dictionary.
Ranks = list[dict[str, Any]]


def run_ranks(
    program: Path, hosts: Sequence[Host], folder: Path, options: list[str], *, deadline_s: float = DEADLINE_S
) -> Ranks:
    """Run a rank on each host; return each rank's results. SystemExit when one fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | KEEP_MEMORY
    processes = [
        subprocess.Popen(
            [*host.command(), sys.executable, str(program), "--rank", str(rank), "--ranks", str(len(hosts)),
             "--folder", str(folder), *options],
            env=environment,
        )
        for rank, host in enumerate(hosts)
    ]  # fmt: skip
    deadline = time.monotonic() + deadline_s
    try:
        while None in (codes := [process.poll() for process in processes]):
            if any(codes) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
    if codes != [0] * len(hosts):
        sys.exit(f"exit codes of the ranks {codes} within {deadline_s:g} s: see above")
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(len(hosts))]


def median_ms(ranks: Ranks, scheme: str) -> float:
    """Median over the repetitions of the slowest rank's step."""
    slowest = [max(seconds) for seconds in zip(*(rank[scheme]["step_s"] for rank in ranks), strict=True)]
    return statistics.median(slowest) * 1e3


def cpu_ms(ranks: Ranks, scheme: str) -> float:
    """Mean over the ranks of the median over the repetitions."""
    return statistics.mean(statistics.median(rank[scheme]["cpu_s"]) for rank in ranks) * 1e3
