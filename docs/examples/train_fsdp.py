"""Train a character-level GPT on the source of Python's standard library, with FSDP2 and THC.

torchrun --standalone --nproc-per-node 4 train_fsdp.py
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from byteps_thc.fsdp import compress_reduce_scatter
from thc_lab.demo.data import BatchSampler, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of 128 characters, per process")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Gpt(GptShape())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in [*model.blocks, model]:
        fully_shard(module, mesh=mesh)
    compress_reduce_scatter(model, bits=4)
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
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
