"""A rank that trains a small model under DDP, once with each scheme. Started by test_ddp.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ranks import Rank, joined_rank
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcConfig, baselines
from byteps_thc.ddp import CompressionPolicy, ThcState, thc_hook


def torchs_bf16_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations
    """DDP refuses torch's own on gloo, by its name; it works there."""
    return bf16_compress_hook(state, bucket)


TORCH_HOOKS = {"fp32": None, "fp16": fp16_compress_hook, "bf16": torchs_bf16_hook}


def train(
    rank: Rank, register: Callable[[DistributedDataParallel], None], lr: float, momentum: float
) -> dict[str, Any]:
    """Fit a random linear map, with a NaN on rank 1 in one step."""
    torch.manual_seed(0)
    target = torch.randn(32, 8)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.005)
    register(ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    generator = torch.Generator().manual_seed(rank.rank)
    losses, skipped = [], []
    for step in range(rank.settings["steps"]):
        inputs = torch.randn(64, 32, generator=generator)
        if step == rank.settings["poisoned_step"] and rank.rank == 1:
            inputs[0, 0] = float("nan")
        loss = nn.functional.mse_loss(ddp(inputs), inputs @ target / 32**0.5)
        optimizer.zero_grad()
        loss.backward()
        if all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters()):
            optimizer.step()
        else:  # as GradScaler does
            skipped.append(step)
        losses.append(loss.item())
    return {"losses": losses, "skipped": skipped, "parameters": flat(model.parameters())}


def flat(parameters: Any) -> Tensor:
    return torch.cat([parameter.detach().view(-1) for parameter in parameters])


def with_scheme(rank: Rank, name: str, options: dict[str, Any], training: dict[str, float]) -> dict[str, Any]:
    config = ThcConfig(**options) if name == "THC" else getattr(baselines, name)(**options)
    policy = CompressionPolicy(bypass_elements=100, deadline_s=30.0)
    state = ThcState(None, config, policy=policy)
    result = train(rank, lambda ddp: ddp.register_comm_hook(state, thc_hook), **training)
    stats, saved = state.compression_stats(), state.state_dict()
    state.close()
    if name in rank.settings["restored"]:
        restored = ThcState(None, config, policy=policy)
        restored.load_state_dict(saved)
        result["restored"] = restored.state_dict()
        restored.close()
    return result | {"ratio": stats.ratio, "steps": stats.steps, "saved": saved}


def with_torch(rank: Rank, hook: Any, training: dict[str, float]) -> dict[str, Any]:
    return train(rank, lambda ddp: None if hook is None else ddp.register_comm_hook(None, hook), **training)


if __name__ == "__main__":
    with joined_rank() as this_rank:
        settings = this_rank.settings
        this_rank.report(
            {name: with_scheme(this_rank, *scheme) for name, scheme in settings["schemes"].items()}
            | {name: with_torch(this_rank, hook, settings["training"]) for name, hook in TORCH_HOOKS.items()}
        )
