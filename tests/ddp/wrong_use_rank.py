"""A rank that uses ddp.compress() rightly once, and it, thc_hook and ThcState wrongly in many ways."""

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from error_of import error_of
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import CompressionPolicy, NetworkConfig, ServerCodes, ThcReducer
from byteps_thc.ddp import ThcState, compress, thc_hook
from byteps_thc.fsdp import compress_reduce_scatter, compress_replicas
from thc_lab.ranks import joined_rank


def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(64, 64))


def backward(ddp: nn.Module) -> torch.Tensor:
    ddp(torch.arange(64.0).repeat(2, 1)).square().mean().backward()
    return next(ddp.parameters()).grad


def the_same() -> dict[str, Any]:
    """Keywords, and state and hook by hand are two ways to the same bits; a compiled model is one more."""
    policy = CompressionPolicy(bypass_elements=0)
    by_keyword, by_hand = model(), model()
    compiled = torch.compile(model(), backend="eager")
    states = [
        compress(by_keyword, bits=2, policy=policy),
        ThcState(by_hand.process_group, policy=policy, model=by_hand, bits=2),
        compress(compiled, bits=2, policy=policy),
    ]
    by_hand.register_comm_hook(states[1], thc_hook)
    gradients = [backward(ddp) for ddp in (by_keyword, by_hand, compiled)]
    bits = states[0].state_dict()["config"]["bits"]
    for state in states:
        state.close()
    return {"gradients": gradients, "bits": bits}


def with_state(state: Any) -> Callable[[], Any]:

    def train() -> None:
        ddp = model()
        ddp.register_comm_hook(state, thc_hook)
        backward(ddp)

    return train


def compressed_twice() -> None:
    ddp = model()
    state = compress(ddp)
    try:
        compress(ddp)
    finally:
        state.close()


def with_variable(text: str, call: Callable[[], Any]) -> Callable[[], Any]:

    def called() -> None:
        with patch.dict(os.environ, THC_CONFIG=text):
            call()

    return called


with joined_rank() as rank:
    mesh = init_device_mesh("cpu", (rank.ranks, 1), mesh_dim_names=("replicate", "shard"))
    only_first, network = dist.new_group([0]), NetworkConfig(["10.0.0.1"])
    calls: dict[str, Callable[[], Any]] = {
        "hook: None": with_state(None),
        "hook: ServerCodes": with_state(ServerCodes()),
        "hook: class": with_state(ThcState),
        "hook: PowerSGDState": with_state(PowerSGDState(None)),
        "state: mesh": lambda: ThcState(mesh),
        "state: mesh dimension": lambda: ThcState(mesh["replicate"]),
        "state: ServerCodes": lambda: ThcState(ServerCodes()),
        "state: model": lambda: ThcState(nn.Linear(2, 2)),
        "state: ranks": lambda: ThcState([0, 1]),
        "state: not in group": lambda: ThcState(only_first).close(),
        "state: log_every": lambda: ThcState(None, log_every=-1),
        "reducer: mesh": lambda: ThcReducer(mesh),
        "compress: plain model": lambda: compress(nn.Linear(2, 2)),
        "compress: twice": compressed_twice,
        "compress: unknown setting": lambda: compress(model(), bit=2),
        "compress: variable beside keywords": with_variable("bit=2", lambda: compress(model(), bits=4)),
        "compress: setting of servers": lambda: compress(model(), bits=4, error_feedback=True, granularity=15),
        "fsdp: setting of servers": lambda: compress_reduce_scatter(
            fully_shard(nn.Linear(2, 2)), rounding="independent"
        ),
        "compress: policy's setting": lambda: compress(model(), warmup_steps=3),
        "compress: policy": lambda: compress(model(), policy={"warmup_steps": 3}),
        "compress: network": lambda: compress(model(), network="10.0.0.1"),
        "compress: grad_scaler": lambda: compress(model(), grad_scaler=True),
        "compress: log_every": lambda: compress(model(), log_every="often"),
        "fsdp: model": lambda: compress_reduce_scatter(None),
        "hsdp: mesh": lambda: compress_replicas(fully_shard(nn.Linear(2, 2)), ServerCodes()),
        "fsdp: down_bits": lambda: compress_reduce_scatter(fully_shard(nn.Linear(2, 2)), down_bits=5),
        "compress: keyword beside a network": lambda: compress(model(), network=network, bits=2),
        "reducer: keyword beside a network": lambda: ThcReducer(network, down_bits=5),
    }
    rank.report({"same": the_same(), "said": {name: error_of(call) for name, call in calls.items()}})
