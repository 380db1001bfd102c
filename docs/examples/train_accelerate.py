"""Train a character-level GPT on the source of Python's standard library, with Hugging Face's Accelerate and THC.

torchrun --standalone --nproc-per-node 4 train_accelerate.py                             # or accelerate launch --cpu
torchrun --standalone --nproc-per-node 4 train_accelerate.py --resume checkpoints/20     # goes on from there
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, set_seed
from torch.utils.data import DataLoader

from byteps_thc.checkpoint import gathered
from byteps_thc.ddp import compress
from thc_lab.demo.data import load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of 128 characters, per process")
    parser.add_argument("--save-every", type=int, default=20, help="steps from one checkpoint to the next")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="a folder for them")
    parser.add_argument("--resume", type=Path, help="one of them")
    args = parser.parse_args()

    # DDP keeps the buckets of its first step then, so that a resumed run repeats the other one bit for bit.
    ddp = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[ddp])
    set_seed(0)
    model = Gpt(GptShape())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    windows = DataLoader(load_corpus().training.unfold(0, 129, 128), args.batch_size, shuffle=True, drop_last=True)
    model, optimizer, windows = accelerator.prepare(model, optimizer, windows)
    state = compress(model)  # of the DDP model that prepare() has made
    accelerator.register_for_checkpointing(gathered(state))  # the states of all ranks, in one file

    step = 0
    if args.resume:
        accelerator.load_state(str(args.resume))
        step = int(args.resume.name)
    while step < args.steps:
        epoch, done = divmod(step, len(windows))
        windows.set_epoch(epoch)
        for batch in accelerator.skip_first_batches(windows, done):
            step += 1
            optimizer.zero_grad()
            loss = loss_of(model, batch[:, :-1], batch[:, 1:])
            accelerator.backward(loss)
            optimizer.step()
            if step == 1 or step % 10 == 0:
                accelerator.print(f"step {step}: loss {loss.item():.6f}", flush=True)
            if step % args.save_every == 0:
                accelerator.save_state(str(args.checkpoints / str(step)))
            if step == args.steps:
                break
    accelerator.print(state.compression_stats())  # "ratio": how much less was sent than in fp32
    accelerator.end_training()


if __name__ == "__main__":
    main()
