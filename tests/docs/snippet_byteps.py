"""A BytePS worker that runs a snippet of the documents (the file in argv) and trains a step with its optimizer."""

import sys
from pathlib import Path
from typing import Any

import torch

from byteps_thc.tools.demo.data import BatchSampler, load_corpus
from byteps_thc.tools.demo.model import Gpt, GptShape, loss_of


def main() -> None:
    model = Gpt(GptShape(layers=1))
    names: dict[str, Any] = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    exec(compile(Path(sys.argv[1]).read_text(encoding="utf-8"), "<snippet>", "exec"), names)
    bps, optimizer = names["bps"], names["optimizer"]
    batches = BatchSampler(load_corpus().training, batch_size=2, context=32, seed=0, worker=bps.rank())
    before = loss_of(model, *batches.next_batch())
    before.backward()
    optimizer.step()
    assert optimizer.compression_stats().ratio > 4
    print(f"rank {bps.rank()} parameters {sum(float(p.detach().double().sum()) for p in model.parameters())!r}")
    optimizer.close_compression()
    bps.shutdown()


if __name__ == "__main__":
    main()
