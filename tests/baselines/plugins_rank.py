"""A rank that trains a small model with every scheme on every plug-in, or notes why it cannot; for test_plugins.py.

settings: schemes (label -> name, options, training), plugins, steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from known_gradients import all_shapes, full_gradients, gradients, sharded_model
from ranks import Rank, joined_rank
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ConfigurationError, NetworkConfig, ThcConfig, ThcReducer, baselines
from byteps_thc.ddp import CompressionPolicy, compress
from byteps_thc.fsdp import compress_reduce_scatter, compress_replicas
from byteps_thc.torch import Compression

POLICY = CompressionPolicy(bypass_elements=100, deadline_s=60.0)
NETWORK = NetworkConfig(["127.0.0.1:1"])  # nobody is there: a refusal comes before the first packet
Averager = Callable[[], None]


def ddp(model: nn.Module, config: Any) -> tuple[nn.Module, Any, Averager]:
    wrapped = DistributedDataParallel(model)
    return wrapped, compress(wrapped, config, policy=POLICY), lambda: None


def reduce_scatter(model: nn.Module, config: Any) -> tuple[nn.Module, Any, Averager]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    return model, compress_reduce_scatter(model, config, policy=POLICY), lambda: None


def replicas(model: nn.Module, config: Any) -> tuple[nn.Module, Any, Averager]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    return model, compress_replicas(model, mesh["replicate"], config, policy=POLICY), lambda: None


def reducer(model: nn.Module, config: Any) -> tuple[nn.Module, Any, Averager]:
    handle = ThcReducer(None, config, policy=POLICY)
    return model, handle, lambda: handle.all_reduce({name: p.grad for name, p in model.named_parameters()})


def network(model: nn.Module, config: Any) -> tuple[nn.Module, Any, Averager]:
    """Servers take baselines on no plug-in."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    calls: list[Callable[[], Any]] = [
        lambda: compress(DistributedDataParallel(nn.Linear(2, 2)), config, network=NETWORK),
        lambda: compress_replicas(model, mesh["replicate"], config, network=NETWORK),
        lambda: ThcReducer(NETWORK, config),
    ]
    raise ConfigurationError("\n".join(map(refusal, calls)))


def byteps(_: nn.Module, config: Any) -> tuple[nn.Module, Any, Averager]:
    raise ConfigurationError(refusal(lambda: Compression.thc(config, route="servers")))


PLUGINS = {f.__name__: f for f in (ddp, reduce_scatter, replicas, reducer, network, byteps)}


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except ConfigurationError as error:
        return str(error)
    return "not refused"


def make_config(name: str, options: dict[str, Any]) -> Any:
    return ThcConfig(**options) if name == "THC" else getattr(baselines, name)(**options)


def train(rank: Rank, plugin: str, name: str, options: dict[str, Any], training: dict[str, float]) -> dict[str, Any]:
    """Fit a random linear map."""
    torch.manual_seed(0)
    target = torch.randn(32, 8)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    try:
        trained, handle, average = PLUGINS[plugin](model, make_config(name, options))
    except ConfigurationError as error:
        return {"error": str(error)}
    optimizer = torch.optim.SGD(model.parameters(), **training)
    generator = torch.Generator().manual_seed(rank.rank)
    losses = []
    for _ in range(rank.settings["steps"]):
        inputs = torch.randn(64, 32, generator=generator)
        loss = nn.functional.mse_loss(trained(inputs), inputs @ target / 32**0.5)
        optimizer.zero_grad()
        loss.backward()
        average()
        optimizer.step()
        losses.append(loss.item())
    stats = handle.compression_stats()
    handle.load_state_dict(handle.state_dict())
    handle.close()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    parameters = torch.cat([parameter.detach().view(-1) for parameter in whole])
    return {"losses": losses, "parameters": parameters, "ratio": stats.ratio, "steps": stats.steps}


def shards(rank: Rank) -> dict[str, Any]:
    """Averages of known gradients with the reduce-scatter, in float32: two steps, then one that is not finite."""
    mesh = init_device_mesh("cpu", (rank.ranks,))
    model = sharded_model(mesh)
    handle = compress_reduce_scatter(model, baselines.TopK(ratio=0.1), policy=POLICY)
    averages, residuals = [], []
    for step in range(3):
        wanted = gradients(rank.rank, step, all_shapes())
        if step == 2 and rank.rank == 1:
            wanted["head"][-1] = float("nan")  # in the last rank's shard
        model(wanted).backward()
        averages.append(full_gradients(model))
        residuals.append(handle.state_dict()["residuals"])
    handle.close()
    narrow = nn.Linear(1100, 1, bias=False)  # the second rank has nothing of it
    fully_shard(narrow, mesh=mesh)
    majority = compress_reduce_scatter(narrow, baselines.SignSgd(variant="majority"), policy=POLICY)
    narrow(torch.ones(1, 1100)).sum().backward()
    result = {"averages": averages, "residuals": residuals, "majority": full_gradients(narrow)["weight"]}
    majority.close()
    return result


def main() -> None:
    with joined_rank() as rank:
        report: dict[str, Any] = {
            plugin: {label: train(rank, plugin, *scheme) for label, scheme in rank.settings["schemes"].items()}
            for plugin in PLUGINS
        }
        rank.report(report | {"shards": shards(rank)})


if __name__ == "__main__":
    main()
