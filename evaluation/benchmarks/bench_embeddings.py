"""An embedding of 20,000 Zipf words, two DDP ranks, AdamW: rows of no batch, padding, loss of rare words.

A word has one of 16 classes, which the model learns: an embedding of 32 dimensions, a hidden layer, a classifier. Most
words are in few batches, and a sixth in none. "THC, blocks across rows" is the same table as a parameter of a
module that is no nn.Embedding, so that blocks do not end at its rows. A minute.
"""

import argparse
import tempfile
from pathlib import Path

from section import publish, table

from thc_lab.ranks import run_ranks

RANK_PROGRAM = Path(__file__).with_name("bench_embeddings_rank.py")
RANKS = 2
COLUMNS = (
    "rows of no batch that moved",
    "by, of a trained row's way",
    "padding row",
    "loss, rare words",
    "loss, frequent words",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = run_ranks(RANK_PROGRAM, RANKS, Path(folder), settings={"steps": args.steps}, timeout_s=900)
    rows = [
        [name, f"{int(moved)} of {int(absent)}", f"{way:.3f}", f"{padding:.4f}", f"{rare:.4f}", f"{frequent:.4f}"]
        for name, (moved, absent, way, padding, rare, frequent) in results[0].items()
    ]
    publish([f"{args.steps} steps.", "", *table([["", *COLUMNS], *rows])], args.json, results=results[0])


if __name__ == "__main__":
    main()
