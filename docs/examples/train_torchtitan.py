"""Train torchtitan's Llama 3 on the characters of Python's standard library, with FSDP2 and THC.

torchrun --standalone --nproc-per-node 4 train_torchtitan.py
torchrun --standalone --nproc-per-node 4 train_torchtitan.py --resume checkpoints/20    # goes on from there

Model, sharding, optimizer and clipping are torchtitan's, and its loop in short. Its own Trainer needs GPUs and was not
run: there, the line would stand between trainer = config.build() and trainer.train(), for trainer.model_parts[0].
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torchtitan.components.checkpointer.base import ModelWrapper
from torchtitan.components.optimizer import default_adamw
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
from torchtitan.distributed.utils import clip_grad_norm_
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import llama3_configs

from byteps_thc.checkpoint import checkpointable, load
from byteps_thc.fsdp import compress_reduce_scatter
from thc_lab.demo.data import BatchSampler, load_corpus


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of 128 characters, per process")
    parser.add_argument("--save-every", type=int, default=20, help="steps from one checkpoint to the next")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="a folder for them")
    parser.add_argument("--resume", type=Path, help="one of them")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    config = llama3_configs["debugmodel"](attn_backend="flex")
    config.layers = config.layers[:2]
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()  # flex attention would be compiled
    with torch.device("meta"):
        model = config.build()
    apply_fsdp_to_decoder(
        model,
        init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",)),
        param_dtype=torch.float32,
        reduce_dtype=torch.float32,
        pp_enabled=False,
    )
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    compression = compress_reduce_scatter(model, bits=4)  # the line
    optimizer = default_adamw(lr=2e-3).build(model_parts=[model])
    states = {"model": ModelWrapper(model), "optimizer": optimizer}
    batches = BatchSampler(load_corpus().training, batch_size=args.batch_size, context=128, seed=0, worker=rank)

    step = 0
    if args.resume:
        step = int(args.resume.name)
        dcp.load(states, checkpoint_id=args.resume)
        load(compression, args.resume)
        for _ in range(step):
            batches.next_batch()
    while step < args.steps:
        step += 1
        inputs, targets = batches.next_batch()
        tokens = targets.numel() * dist.get_world_size()  # torchtitan's FSDP sums gradients, and divides by no ranks
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum") / tokens
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        dist.all_reduce(loss)
        if rank == 0 and (step == 1 or step % 10 == 0):
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
        if step % args.save_every == 0:
            dcp.save({**states, "thc": checkpointable(compression)}, checkpoint_id=args.checkpoints / str(step))
    if rank == 0:
        print(compression.compression_stats())  # "ratio": how much less was sent than in fp32
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
