"""Train with DDP; thc-ps sums for the ranks. The variables of ranks are those of torchrun, or of a scheduler's script.

THC_SERVERS=10.0.0.1 torchrun --standalone --nproc-per-node 2 train_servers.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import NetworkConfig
from byteps_thc.ddp import compress


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    features, wanted = torch.randn(256, 1000), torch.randn(256, 10)
    model = DistributedDataParallel(nn.Linear(1000, 10))
    compress(model, network=NetworkConfig.from_environment())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    own = slice(dist.get_rank(), None, dist.get_world_size())

    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(features[own]), wanted[own])
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step == 1 or step % 10 == 0):
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
