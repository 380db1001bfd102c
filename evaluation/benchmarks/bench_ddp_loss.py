"""Loss after 300 steps of the demo's model with four DDP ranks: THC, default settings, against DDP's fp32 average.

Both runs start from the same parameters and see the same batches. The loss is the mean per character over all of the
held-out files (lab/thc_lab/demo/data.py), after the last step. A few minutes.

    PYTHONPATH=evaluation:tests/lib .venv/bin/python evaluation/benchmarks/bench_ddp_loss.py
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from ranks import run_ranks

RANK_PROGRAM = Path(__file__).with_name("bench_ddp_loss_rank.py")
RANKS = 4
TIMEOUT_S = 1500.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = run_ranks(RANK_PROGRAM, RANKS, Path(folder), settings={"steps": args.steps}, timeout_s=TIMEOUT_S)
    losses: dict[str, float] = results[0]
    difference = losses["thc"] / losses["fp32"] - 1
    print(
        f"held-out loss after {args.steps} steps: fp32 {losses['fp32']:.4f}, THC {losses['thc']:.4f}: {difference:+.2%}"
    )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"steps": args.steps, **losses}))


if __name__ == "__main__":
    main()
