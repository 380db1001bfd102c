"""A rank that trains with several thc-ps until it is told to stop, and reports each step's averages.

settings: {"front": "ddp", "reducer" or "hsdp" of two replicas of two shards; "servers": addresses; "steps": None: until
the file "stop" is in the ranks' directory}. Rank 0 writes steps and moves to "progress" after each step.
"""

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ServerCodes, ThcReducer
from byteps_thc._net.servers import NetworkConfig
from byteps_thc.ddp import CompressionPolicy, compress
from byteps_thc.fsdp import compress_replicas
from thc_lab.ranks import Rank, joined_rank

#: Some ten partitions in each step, in several buckets.
CODES = ServerCodes(rotation_block=1024, partition_bytes=1 << 13, codes_per_packet=1024, error_feedback=True)


POLICY = CompressionPolicy(deadline_s=60, bypass_elements=0)


def compressed_model(rank: Rank) -> tuple[nn.Module, Any]:
    network = NetworkConfig(rank.settings["servers"], codes=CODES)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 80), nn.Linear(80, 50))
    if rank.settings["front"] == "ddp":
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
        return ddp, compress(ddp, network=network, policy=POLICY)
    if rank.settings["front"] == "reducer":
        return model, ThcReducer(network, policy=POLICY)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for layer in model:
        fully_shard(layer, mesh=mesh["shard"])
    sharded = fully_shard(model, mesh=mesh["shard"])
    return sharded, compress_replicas(sharded, mesh["replicate"], network=network, policy=POLICY)


def gradient_of(model: nn.Module) -> torch.Tensor:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([(g.to_local() if isinstance(g, DTensor) else g).flatten() for g in gradients])


def train(rank: Rank) -> dict[str, Any]:
    steps, stop, progress = rank.settings["steps"], rank.directory / "stop", rank.directory / "progress"
    model, state = compressed_model(rank)
    digests: list[str] = []
    while True:
        torch.manual_seed(1000 * len(digests) + rank.rank)
        model.zero_grad()
        loss = model(torch.randn(8, 100)).square().mean()
        loss.backward()
        if isinstance(state, ThcReducer):
            state.all_reduce({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        digests.append(hashlib.sha256(gradient_of(model).numpy().tobytes()).hexdigest())
        # As trainings log it: a rank waits here for another that may lack an average.
        told = torch.tensor([float(stop.exists()), loss.item()])
        dist.all_reduce(told)
        if rank.rank == 0:
            (rank.directory / "new").write_text(f"{len(digests)} {state.compression_stats().server_moves}")
            (rank.directory / "new").rename(progress)
        if told[0] > 0 if steps is None else len(digests) == steps:
            break
    moves = state.compression_stats().server_moves
    dist.barrier()
    state.close()
    return {"digests": digests, "moves": moves}


with joined_rank(timeout_s=120) as this_rank:
    this_rank.report(train(this_rank))
