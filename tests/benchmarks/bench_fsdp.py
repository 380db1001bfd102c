"""Backward of an FSDP2 model of 25 M parameters: THC's reduce-scatter against fp32's and bf16's, and against itself
when backward waits for every group's average, as it did before reduce-scatters went on beside it.

Two gloo ranks, each on a host of its own (a network namespace) behind a link shaped to a rate in both directions
(tests/lib/shaped_network.py). Needs root. Schemes take turns step by step in the same processes. Parameters stay
gathered between forward and backward, so that backward only reduces. Times are the slowest rank's from a common
barrier, and medians over the repetitions.

    sudo PYTHONPATH=tests/lib .venv/bin/python tests/benchmarks/bench_fsdp.py [--gbit 1 0.25] [--json fsdp.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ratio import Row, report
from shaped_network import ShapedNetwork

from byteps_thc.errors import ConfigurationError

RANK_PROGRAM = Path(__file__).with_name("bench_fsdp_rank.py")
RANKS = 2
DEADLINE_S = 300.0
#: glibc would give the gradients' memory back every step; faulting it in again takes long.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
PEERS = {
    "waits": "THC, waited for group by group",
    "fp32": "FSDP2, fp32",
    "bf16": "FSDP2, reduce_dtype bf16",
    "alone": "backward alone",
}


def run_ranks(network: ShapedNetwork, folder: Path, options: list[str]) -> dict[str, float]:
    """Return the milliseconds of a backward pass of each scheme. SystemExit when a rank fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | KEEP_MEMORY
    processes = [
        subprocess.Popen(
            [*host.command(), sys.executable, str(RANK_PROGRAM), "--rank", str(rank), "--ranks", str(RANKS),
             "--folder", str(folder), *options],
            env=environment,
        )
        for rank, host in enumerate(network.hosts)
    ]  # fmt: skip
    deadline = time.monotonic() + DEADLINE_S
    try:
        while None in (codes := [process.poll() for process in processes]):
            if any(codes) or time.monotonic() > deadline:
                sys.exit(f"exit codes of the ranks {codes} within {DEADLINE_S:g} s: see above")
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    return {
        name: statistics.median(max(seconds) for seconds in zip(*(rank[name] for rank in ranks), strict=True)) * 1e3
        for name in ranks[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gbit", type=float, nargs="+", default=[1.0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rows", type=int, default=64, help="of a batch: what backward computes")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    try:
        network = ShapedNetwork(RANKS)
    except ConfigurationError as error:
        sys.exit(str(error))
    rows: list[Row] = []
    with network:
        for gbit in args.gbit:
            for host in network.hosts:
                host.shape(gbit * 1e9)
            with tempfile.TemporaryDirectory() as folder:
                options = ["--repeats", str(args.repeats), "--rows", str(args.rows)]
                times_ms = run_ranks(network, Path(folder), options)
            what, own_us = f"FSDP2 backward with THC, {gbit:g} Gb/s", times_ms["thc"] * 1e3
            for scheme, name in PEERS.items():
                peer_us = times_ms[scheme] * 1e3
                rows.append(Row(what, own_us, name, peer_us, "", peer_us / own_us, None))
    report("Backward of an FSDP2 model of 25 M parameters", rows, args.json)


if __name__ == "__main__":
    main()
