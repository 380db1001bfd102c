"""The front ends among four ranks, as torchrun starts them; rank 0 prints its versions."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcReducer
from byteps_thc.checkpoint import checkpointable, load
from byteps_thc.ddp import compress
from byteps_thc.fsdp import compress as compress_sharded
from byteps_thc.fsdp import compress_replicas

SIZE = 256  # so that nothing travels exactly
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


def weight() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(SIZE, SIZE, bias=False)


def own_gradient(of: int) -> Tensor:
    return torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(of))


def require_average(average: Tensor, what: str) -> None:
    wanted = torch.stack([own_gradient(each) for each in range(ranks)]).mean(0)
    error = float((average - wanted).square().sum() / wanted.square().sum())
    assert 0 < error < 0.023, (what, error)  # 16 uniform levels of blocks of 64 leave .0215 of normal gradients


def backward(model: nn.Module) -> None:
    # The gradient of sum((inputs W^T) * factors) with identity inputs is the factors, transposed.
    (model(torch.eye(SIZE)) * own_gradient(rank).T).sum().backward()


ddp = DistributedDataParallel(weight())
state = compress(ddp, bits=4, down_bits=4)
backward(ddp)
require_average(ddp.module.weight.grad, "DDP")
dcp.save({"thc": checkpointable(state)}, checkpoint_id=sys.argv[1])
load(state, sys.argv[1], parameters=ddp.module.named_parameters())
assert state.compression_stats().steps == 1

sharded = weight()
fully_shard(sharded)
compression = compress_sharded(sharded, bits=4, down_bits=4)
backward(sharded)
require_average(sharded.weight.grad.full_tensor(), "FSDP2")
compression.close()

mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
hybrid = weight()
fully_shard(hybrid, mesh=mesh["shard"])
compression = compress_replicas(hybrid, mesh["replicate"], bits=4, down_bits=4)
backward(hybrid)
require_average(hybrid.weight.grad.full_tensor(), "HSDP")
compression.close()

with ThcReducer(None, bits=4, down_bits=4) as reducer:
    tensor = own_gradient(rank)
    reducer.all_reduce({"weight": tensor})
    require_average(tensor, "reducer")
dist.barrier()
if rank == 0:
    print("averaged with torch", torch.__version__)
dist.destroy_process_group()
