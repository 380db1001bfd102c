"""A rank of 2 replicas x 2 shards that averages known gradients with DDP, then with HSDP, through servers or a switch.

Settings: server; ddp_ports and hsdp_ports, the ranks' UDP ports, or none.
"""

from typing import Any

import torch
from known_gradients import all_shapes, full_gradients, gradients, sharded_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import CompressionPolicy, NetworkConfig, ServerCodes, Timeouts, UdpConfig
from byteps_thc.ddp import compress
from byteps_thc.fsdp import compress_replicas
from thc_lab.ranks import Rank, joined_rank

STEPS = 2
CODES = ServerCodes(rotation_block=256, partition_bytes=4096, granularity=30)
SMALL = CompressionPolicy(bypass_elements=64)
#: A software switch takes milliseconds for a packet: queues are long, and nothing else is lost.
TIMEOUTS = Timeouts(connect_s=30.0, operation_s=60.0)


def network_of(rank: Rank, job: int, ports: list[int]) -> NetworkConfig:
    backend = UdpConfig(local=f"127.0.0.1:{ports[rank.rank]}") if ports else "udp"
    return NetworkConfig([rank.settings["server"]], job=job, timeouts=TIMEOUTS, backend=backend, codes=CODES)


def ddp_averages(rank: Rank, network: NetworkConfig) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(50, 60), nn.Linear(60, 40)))
    state = compress(model, network=network, policy=SMALL)
    averages = []
    for step in range(STEPS):
        inputs = torch.randn(8, 50, generator=torch.Generator().manual_seed(100 * step + rank.rank))
        model.zero_grad()
        model(inputs).square().mean().backward()
        averages += [parameter.grad.clone() for name, parameter in model.named_parameters() if "weight" in name]
    state.close()
    return averages


def hsdp_averages(rank: Rank, network: NetworkConfig) -> list[Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded_model(mesh["shard"])
    handle = compress_replicas(model, mesh["replicate"], policy=SMALL, network=network)
    averages = []
    for step in range(STEPS):
        model(gradients(rank.rank, step, all_shapes())).backward()
        averages.append(full_gradients(model))
    handle.close()
    return averages


def main() -> None:
    with joined_rank() as rank:
        ddp = ddp_averages(rank, network_of(rank, 5, rank.settings["ddp_ports"]))
        hsdp = hsdp_averages(rank, network_of(rank, 7, rank.settings["hsdp_ports"]))
        rank.report({"ddp": ddp, "hsdp": hsdp})


main()
