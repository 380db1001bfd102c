"""Two ranks whose compression goes on from states of different steps; reports the error of backward in each kind."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from known_gradients import all_shapes, gradients, sharded_model
from ranks import Rank, joined_rank
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from byteps_thc import ThcConfig
from byteps_thc.fsdp import FsdpCompression, NetworkConfig, compress_reduce_scatter, compress_replicas
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.saved_state import sealed

#: long, because no wait may last as long
POLICY = CompressionPolicy(bypass_elements=64, deadline_s=60)
CONFIG = ThcConfig(rotation_block=256, partition_bytes=4096)


def fsdp(_: Rank) -> tuple[nn.Module, FsdpCompression]:
    model = sharded_model(init_device_mesh("cpu", (2,)))
    return model, compress_reduce_scatter(model, CONFIG, policy=POLICY)


def hsdp(_: Rank, network: NetworkConfig | None = None) -> tuple[nn.Module, FsdpCompression]:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = sharded_model(mesh["shard"])
    return model, compress_replicas(model, mesh["replicate"], CONFIG, policy=POLICY, network=network)


def hsdp_servers(rank: Rank) -> tuple[nn.Module, FsdpCompression]:
    return hsdp(rank, NetworkConfig(rank.settings["servers"], job=1))


def error_of(rank: Rank, compressed: Callable[[Rank], tuple[nn.Module, FsdpCompression]]) -> str:
    model, handle = compressed(rank)
    model(gradients(rank.rank, 0, all_shapes())).backward()
    state = handle.state_dict()
    handle.load_state_dict(sealed(state | {"round": state["round"] + 7 * rank.rank}))
    try:
        model(gradients(rank.rank, 1, all_shapes())).backward()
    except Exception as error:  # of whatever kind: it comes through torch
        return str(error)
    finally:
        handle.close()
    return ""


def main() -> None:
    torch.set_num_threads(1)
    with joined_rank() as rank:
        reports = {}
        for compressed in (fsdp, hsdp, hsdp_servers):
            reports[compressed.__name__] = error_of(rank, compressed)
            dist.barrier()
        rank.report(reports)


if __name__ == "__main__":
    main()
