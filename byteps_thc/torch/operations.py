"""BytePS's operations with the signatures of byteps.torch: what its front end adds to those of _net/byteps.

push_pull and push_pull_async do not return uninitialised memory for CPU tensors, as byteps.torch 0.2.5 does.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.push_pull import Handle, push_pull_async_inplace, synchronize
from byteps_thc._net.byteps_servers.environment import prepare_environment
from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.errors import ConfigurationError, InputError
from byteps_thc.torch.compression import Compression, GradientCompression


def init(lazy: bool = True) -> None:
    """Start BytePS in this process; its role and peers are in the environment that bpslaunch sets.

    lazy: connect to the servers with the first push_pull instead of now. This, shutdown, suspend and resume raise
    DeadlineError when others are not there within THC_DEADLINE_S, or 600, seconds.
    """
    with suppress(ConfigurationError):  # the servers route checks the environment when it is chosen
        prepare_environment(ThcConfig.from_environment().resolve(int(os.environ.get("DMLC_NUM_WORKER", "1"))))
    process.init(lazy)


def push_pull_async(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Handle:
    """Start adding up a tensor over all workers; the tensor stays as it is. See push_pull_async_inplace."""
    # BytePS leaves the output of CPU tensors uninitialised unless it is the input.
    return push_pull_async_inplace(tensor.detach().clone(), average, name, version, priority)


def push_pull_inplace(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Tensor:
    """Add up a tensor over all workers, in place, and return it. See push_pull_async_inplace."""
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority))


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: GradientCompression = Compression.none,
) -> Tensor:
    """Return the sum or average of a tensor over all workers; gradients flow through it.

    name is required (InputError), as in BytePS. compression: Compression.none or fp16; THC keeps state for each
    parameter and belongs into a DistributedOptimizer (ConfigurationError).
    """
    if name is None:
        raise InputError("push_pull needs name=..., the same on all workers")
    if not hasattr(compression, "compress"):
        raise ConfigurationError(
            "push_pull takes Compression.none or fp16; give Compression.thc to DistributedOptimizer"
        )
    compressed, context = compression.compress(tensor)
    summed = _PushPull.apply(compressed, average, name, version, priority)  # type: ignore[no-untyped-call]
    return compression.decompress(summed, context)


class _PushPull(torch.autograd.Function):
    """The gradient of a sum over the workers is the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, average: bool, name: str, version: int, priority: int) -> Tensor:
        ctx.arguments = average, name, version, priority
        return synchronize(push_pull_async(tensor.contiguous(), average, name, version, priority))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        average, name, version, priority = ctx.arguments
        pushed = push_pull_async(gradients[0].contiguous(), average, f"{name}.gradient", version, priority)
        return synchronize(pushed), None, None, None, None
