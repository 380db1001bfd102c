"""Train a character-level GPT on the source of Python's standard library, in one process.

python train_single.py
"""

import argparse

import torch

from thc_lab.demo.data import BatchSampler, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of 128 characters, per process")
    args = parser.parse_args()

    rank = 0
    torch.manual_seed(0)
    model = Gpt(GptShape())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = BatchSampler(load_corpus().training, batch_size=args.batch_size, context=128, seed=0, worker=rank)

    for step in range(1, args.steps + 1):
        inputs, targets = batches.next_batch()
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step == 1 or step % 10 == 0):
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
