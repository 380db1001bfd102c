"""A rank that uses byteps_thc.ddp.compress() rightly once, and it, thc_hook and ThcState wrongly in many ways.

Reports what was said.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from ranks import joined_rank
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import CompressionPolicy, ThcConfig, ThcReducer
from byteps_thc.ddp import ThcState, compress, thc_hook
from byteps_thc.fsdp import compress_reduce_scatter, compress_replicas


def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(64, 64))


def backward(ddp: nn.Module) -> torch.Tensor:
    ddp(torch.arange(64.0).repeat(2, 1)).square().mean().backward()
    return next(ddp.parameters()).grad


def the_same() -> dict[str, Any]:
    """Keywords, a config, and state and hook by hand are three ways to the same bits; a compiled model is one more."""
    policy = CompressionPolicy(bypass_elements=0)
    config = ThcConfig(bits=2)
    by_keyword, by_config, by_hand = model(), model(), model()
    compiled = torch.compile(model(), backend="eager")
    states = [
        compress(by_keyword, bits=2, policy=policy),
        compress(by_config, config, policy=policy),
        ThcState(by_hand.process_group, config, policy=policy, model=by_hand),
        compress(compiled, bits=2, policy=policy),
    ]
    by_hand.register_comm_hook(states[2], thc_hook)
    gradients = [backward(ddp) for ddp in (by_keyword, by_config, by_hand, compiled)]
    bits = states[0].state_dict()["config"]["bits"]
    for state in states:
        state.close()
    return {"gradients": gradients, "bits": bits}


def with_state(state: Any) -> Callable[[], Any]:
    """A backward pass with that state of thc_hook."""

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
    """The call, with THC_CONFIG set."""

    def called() -> None:
        with patch.dict(os.environ, THC_CONFIG=text):
            call()

    return called


def said(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    with joined_rank() as rank:
        mesh = init_device_mesh("cpu", (rank.ranks, 1), mesh_dim_names=("replicate", "shard"))
        only_first = dist.new_group([0])
        calls: dict[str, Callable[[], Any]] = {
            "hook: None": with_state(None),
            "hook: ThcConfig": with_state(ThcConfig()),
            "hook: class": with_state(ThcState),
            "hook: PowerSGDState": with_state(PowerSGDState(None)),
            "state: mesh": lambda: ThcState(mesh),
            "state: mesh dimension": lambda: ThcState(mesh["replicate"]),
            "state: ThcConfig": lambda: ThcState(ThcConfig()),
            "state: model": lambda: ThcState(nn.Linear(2, 2)),
            "state: ranks": lambda: ThcState([0, 1]),
            "state: not in group": lambda: ThcState(only_first).close(),
            "state: class": lambda: ThcState(None, ThcConfig),
            "state: bits": lambda: ThcState(None, 4),
            "state: log_every": lambda: ThcState(None, log_every=-1),
            "reducer: mesh": lambda: ThcReducer(mesh),
            "reducer: ThcConfig": lambda: ThcReducer(ThcConfig()),
            "compress: plain model": lambda: compress(nn.Linear(2, 2)),
            "compress: twice": compressed_twice,
            "compress: config and settings": lambda: compress(model(), ThcConfig(), bits=2),
            "compress: unknown setting": lambda: compress(model(), bit=2),
            "compress: variable beside keywords": with_variable("bit=2", lambda: compress(model(), bits=4)),
            "compress: variable beside a config": with_variable("bit=2", lambda: compress(model(), ThcConfig())),
            "compress: setting of servers": lambda: compress(model(), bits=4, error_feedback=True, granularity=15),
            "fsdp: setting of servers": lambda: compress_reduce_scatter(
                fully_shard(nn.Linear(2, 2)), rounding="independent"
            ),
            "reducer: setting of servers": lambda: ThcReducer(None, ThcConfig.paper()),
            "compress: policy's setting": lambda: compress(model(), warmup_steps=3),
            "compress: policy": lambda: compress(model(), policy={"warmup_steps": 3}),
            "compress: network": lambda: compress(model(), network="10.0.0.1"),
            "compress: grad_scaler": lambda: compress(model(), grad_scaler=True),
            "compress: log_every": lambda: compress(model(), log_every="often"),
            "reducer: policy": lambda: ThcReducer(policy=5),
            "fsdp: policy": lambda: compress_reduce_scatter(fully_shard(nn.Linear(2, 2)), policy={}),
            "fsdp: model": lambda: compress_reduce_scatter(None),
            "hsdp: mesh": lambda: compress_replicas(fully_shard(nn.Linear(2, 2)), ThcConfig()),
            "fsdp: config and settings": lambda: compress_reduce_scatter(
                fully_shard(nn.Linear(2, 2)), ThcConfig(), bits=2
            ),
        }
        rank.report({"same": the_same(), "said": {name: said(call) for name, call in calls.items()}})


if __name__ == "__main__":
    main()
