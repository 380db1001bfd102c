"""Train a character-level GPT on the source of Python's standard library, on hosts that come and go.

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1    # or restarted ranks would look for those before them
torchrun --nnodes 1:4 --nproc-per-node 4 --max-restarts 9 --rdzv-backend c10d --rdzv-endpoint HOST train_elastic.py

on each host. When one goes or comes, torchrun starts all ranks again, as many as there are then. They go on from the
last checkpoint, whose counters of steps and rounds any number of ranks loads.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import CompressionPolicy
from byteps_thc.checkpoint import checkpointable, load
from byteps_thc.ddp import compress
from thc_lab.demo.data import BatchSampler, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of 128 characters, per process")
    parser.add_argument("--save-every", type=int, default=20, help="steps from one checkpoint to the next")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="a folder that all hosts see")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Gpt(GptShape()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    state = compress(model, policy=CompressionPolicy(deadline_s=60))

    step = 0
    saved = sorted(args.checkpoints.glob("*/.metadata"), key=lambda file: int(file.parent.name))  # it is written last
    if saved:
        path = saved[-1].parent
        step = int(path.name)
        torch_state = torch.load(path / "model.pt", weights_only=True)
        model.module.load_state_dict(torch_state["model"])
        optimizer.load_state_dict(torch_state["optimizer"])
        load(state, path, parameters=model.module.named_parameters())
    if rank == 0:
        print(f"{ranks} ranks begin after step {step}", flush=True)
    # Other data than before the restart: nobody knows who had which.
    batches = BatchSampler(load_corpus().training, batch_size=args.batch_size, context=128, seed=step, worker=rank)

    while step < args.steps:
        step += 1
        inputs, targets = batches.next_batch()
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step == 1 or step % 10 == 0):
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        if step % args.save_every == 0:
            path = args.checkpoints / str(step)
            if rank == 0:
                path.mkdir(parents=True, exist_ok=True)
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path / "model.pt")
            dcp.save({"thc": checkpointable(state)}, checkpoint_id=path)
    if rank == 0:
        print(state.compression_stats())  # "ratio": how much less was sent than in fp32
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
