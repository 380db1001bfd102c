"""What packet loss costs with and without synchronising parameters: the paper's section 6 on the demo's model.

Four DDP ranks train a small GPT of the demo through thc-ps, which gives lost packets up. Runs: no loss; a share of all
datagrams lost, up and down; the same, synchronised every so many steps. All begin with the same parameters and see the
same batches. The held-out loss is taken of every rank's own model. Some minutes.

    PYTHONPATH=evaluation:tests/lib .venv/bin/python evaluation/benchmarks/bench_synchronization.py
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from ranks import run_ranks

from byteps_thc.tools.launch import ParameterServer

RANK_PROGRAM = Path(__file__).with_name("bench_synchronization_rank.py")
TIMEOUT_S = 1500.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--loss", type=float, default=0.01, help="share of datagrams that are lost, up and down each")
    parser.add_argument("--every", type=int, default=50, help="steps between synchronisations")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    settings = {"steps": args.steps, "loss": args.loss, "every": args.every, "seeds": args.seeds}
    with tempfile.TemporaryDirectory() as folder, ParameterServer() as server:
        settings["servers"] = [server.address]
        results = run_ranks(RANK_PROGRAM, args.ranks, Path(folder), settings=settings, timeout_s=TIMEOUT_S)[0]
    print("| run | seed | contributions missing | drift | held-out loss, best and worst rank |")
    print("| --- | --- | --- | --- | --- |")
    for run in results:
        print(
            f"| {run['name']} | {run['seed']} | {run['missing']:.2%} | {run['drift']:.2g} | "
            f"{min(run['losses']):.3f}, {max(run['losses']):.3f} |"
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
