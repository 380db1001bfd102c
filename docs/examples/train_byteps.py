"""Train a character-level GPT on the source of Python's standard library, with BytePS and THC.

THC_SERVERS=10.0.0.1 bpslaunch python train_byteps.py    # or THC_ROUTE=servers: through BytePS's own servers
"""

import argparse

import torch

import byteps_thc.torch as bps
from thc_lab.demo.data import BatchSampler, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of 128 characters, per process")
    args = parser.parse_args()

    bps.init()
    rank = bps.rank()
    torch.manual_seed(0)
    model = Gpt(GptShape())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), compression=bps.Compression.thc())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    batches = BatchSampler(load_corpus().training, batch_size=args.batch_size, context=128, seed=0, worker=rank)

    for step in range(1, args.steps + 1):
        inputs, targets = batches.next_batch()
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step == 1 or step % 10 == 0):
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
