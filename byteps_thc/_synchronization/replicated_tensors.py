"""What of a model is copied from rank to rank, and among which ranks."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.groups import choose_process_group
from byteps_thc._net.replicas import RankReplicas, Replicas
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.settings import describe
from byteps_thc._synchronization.optimizer_state import local, parameters_of


def choose_replicas(model: nn.Module, optimizer: object, compression: object) -> Replicas:
    """Return the ranks that should have the same parameters.

    compression: the handle of a front end, whose ranks they are; None: BytePS's optimizer is one itself, else they are
    all of the model's process group.
    """
    if compression is None and hasattr(optimizer, "replicas"):
        compression = optimizer
    if compression is not None:
        if not hasattr(compression, "replicas"):
            raise ConfigurationError(
                f"compression is {describe(compression)}: give what compress(), compress_replicas(), ThcReducer() or "
                "BytePS's DistributedOptimizer() has returned"
            )
        replicas: Replicas | None = compression.replicas
        if replicas is None:
            raise ConfigurationError(
                f"{describe(compression)} has no replicas that could be synchronised: without a process group nobody "
                "can copy parameters exactly, call torch.distributed.init_process_group() before; and the shards of "
                "compress_reduce_scatter() are on one rank each, and do not drift"
            )
        return replicas
    if any(hasattr(parameter, "to_local") for parameter in model.parameters()):
        raise ConfigurationError(
            "the model is sharded, and it must be known which ranks have the same shards: give compression=..., what "
            "compress_replicas() has returned"
        )
    wrapped = getattr(model, "_orig_mod", model)
    group = wrapped.process_group if isinstance(wrapped, DistributedDataParallel) else None
    return RankReplicas(choose_process_group(group, "synchronize_parameters"), CompressionPolicy().deadline_s)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; of DTensors this rank's shards. ConfigurationError for sparse ones."""
    for module in model.modules():
        # After a forward pass without backward, whole parameters may be in the place of shards. The class goes by its
        # name, because it takes seconds to import.
        if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
            cast(Any, module).reshard()
    named = [*model.named_parameters(), *model.named_buffers()]
    tensors = {name: local(tensor.detach()) for name, tensor in named}
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ConfigurationError(f"{sparse[0]!r} is sparse, and only dense tensors can be copied to other ranks")
    return tensors


def description(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> list[str]:
    """One line per tensor that must be the same on all ranks, but for its values."""
    lines = [f"{name}: {_kind(tensor)}" for name, tensor in tensors_of(model).items()]
    if optimizer is not None:
        kind = type(optimizer)
        lines.append(f"the optimizer is {kind.__module__}.{kind.__qualname__}")
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        lines.append(f"parameters of the optimizer's groups: {sizes}")
        lines += [f"optimizer's parameter {i}: {_kind(p)}" for i, p in enumerate(parameters_of(optimizer))]
    return lines


def _kind(tensor: Any) -> str:
    part = local(tensor)
    return f"{part.dtype} {list(part.shape)}"
