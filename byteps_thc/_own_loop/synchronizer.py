"""When replicas are synchronised, and how."""

import json
import logging
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import describe
from byteps_thc._base.torch_private import uncompiled
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.groups import choose_process_group
from byteps_thc._net.handshake import gather_by_rank, require_equal
from byteps_thc._net.replicas import RankReplicas, Replicas, require_same_lines
from byteps_thc._own_loop.optimizer_state import broadcast_optimizer, local, parameters_of, require_optimizer

_logger = logging.getLogger("byteps_thc")


def synchronize_parameters(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    compression: object = None,
    grad_scaler: Any = None,
) -> None:
    """Copy the parameters, buffers and optimizer state of rank 0 to all ranks, bit for bit; collective.

    model: model of ParameterSynchronizer.
    optimizer: its optimizer, default: none.
    compression: its compression, default: none.
    grad_scaler: its grad_scaler, default: none.

    Use it in a training that counts epochs itself. Raises the errors of ParameterSynchronizer.
    """
    synchronizer = ParameterSynchronizer(model, optimizer, compression=compression, grad_scaler=grad_scaler)
    synchronizer.synchronize()


class ParameterSynchronizer:
    """Keep replicas from drifting apart if losses or a quorum give them different averages (paper, section 6).

    model: the model, whose parameters and buffers are copied from rank 0, or with HSDP from the first replica of each
        shard.
    optimizer: the optimizer, whose state and hyperparameters are copied; default: none.
    compression: the result of compress(), compress_replicas() or ThcReducer(), for its ranks and deadline. Default: the
        ranks of BytePS's optimizer or of the DDP model, or all.
    grad_scaler: the GradScaler, default: none. Drifting ranks may skip different steps.
    synchronize_every: calls of step() between synchronisations, about an epoch; default: only synchronize()
        synchronises.

    Residuals of error feedback stay on their ranks, because each rank still owes them to the average. Learning-rate
    schedulers and random states are not copied. All ranks make a synchronizer and call its methods alike.

    Raises ConfigurationError on all ranks if their settings, models or steps differ, and TransportError or
    DeadlineError if another rank fails or is late. Restart the training from its checkpoint afterwards, because
    parameters may be of two ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        compression: object = None,
        grad_scaler: Any = None,
        synchronize_every: int | None = None,
    ) -> None:
        if synchronize_every is not None and (type(synchronize_every) is not int or synchronize_every < 1):
            raise ConfigurationError(f"synchronize_every must be 1 step or more, not {synchronize_every!r}")
        if not isinstance(model, nn.Module):
            raise ConfigurationError(f"the first argument is the model, not {describe(model)}")
        if optimizer is not None:
            require_optimizer(optimizer)
        self._model, self._optimizer, self._grad_scaler = model, optimizer, grad_scaler
        self._every = synchronize_every
        self._replicas = choose_replicas(model, optimizer, compression)
        self._replicas.synchronized = True
        self._steps = 0
        self._compare_ranks()
        self._compared = True

    @property
    def steps(self) -> int:
        """Number of step() calls."""
        return self._steps

    def step(self) -> bool:
        """Count an optimizer step, synchronise if it is due, and return whether it was.

        Call it on all ranks after optimizer.step(), also if a GradScaler skipped the step.
        """
        if self._every is None:
            raise ConfigurationError("step() needs synchronize_every: pass it, or call synchronize() yourself")
        if not self._compared:  # after load_state_dict(): ranks that count differently would wait for each other
            self._compare_ranks()
            self._compared = True
        self._steps += 1
        if self._steps % self._every:
            return False
        self.synchronize()
        if self._replicas.is_root:
            _logger.info("step %d: parameters synchronised (every %d steps)", self._steps, self._every)
        return True

    def synchronize(self) -> None:
        """Make replicas identical now."""
        self._compare_ranks()
        self._replicas.broadcast_tensors(tensors_of(self._model))
        if self._optimizer is not None:
            broadcast_optimizer(self._optimizer, self._replicas)
        if self._grad_scaler is not None:
            state = json.loads(self._replicas.broadcast_bytes(json.dumps(self._grad_scaler.state_dict()).encode()))
            if not self._replicas.is_root:
                self._grad_scaler.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the count of steps for a checkpoint, {"steps"}; the same on all ranks."""
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state_dict(), the same on all ranks. The next step() compares them."""
        steps = state.get("steps") if isinstance(state, Mapping) else None
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
            raise ConfigurationError('not the state of a ParameterSynchronizer, which is {"steps": a number}')
        self._steps = steps
        self._compared = False

    def _compare_ranks(self) -> None:
        """Raise ConfigurationError on all ranks unless their settings, steps and tensors are the same."""
        mine = {"steps": self._steps, "synchronize_every": self._every, "grad_scaler": self._grad_scaler is not None}
        texts = gather_by_rank(self._replicas.gather, json.dumps(mine), self._replicas.world_rank)
        require_equal({rank: json.loads(text) for rank, text in texts.items()})
        require_same_lines(self._replicas, description(self._model, self._optimizer), "models or optimizers")


def choose_replicas(model: nn.Module, optimizer: object, compression: object) -> Replicas:
    """Return the ranks with the same parameters: of the handle `compression`, BytePS's optimizer or the model."""
    if compression is None and hasattr(optimizer, "replicas"):
        compression = optimizer
    if compression is not None:
        if not hasattr(compression, "replicas"):
            raise ConfigurationError(
                f"compression is {describe(compression)}: pass the result of compress(), compress_replicas(), "
                "ThcReducer() or BytePS's DistributedOptimizer()"
            )
        replicas: Replicas | None = compression.replicas
        if replicas is None:
            raise ConfigurationError(
                f"{describe(compression)} has no replicas to synchronise. Copying needs a process group: call "
                "torch.distributed.init_process_group() before. And the shards of compress_reduce_scatter() are on one "
                "rank each, and do not drift"
            )
        return replicas
    if any(hasattr(parameter, "to_local") for parameter in model.parameters()):
        raise ConfigurationError(
            "the model is sharded, and some ranks have the same shards: pass compression=..., the result of "
            "compress_replicas()"
        )
    wrapped = uncompiled(model)
    group = wrapped.process_group if isinstance(wrapped, DistributedDataParallel) else None
    return RankReplicas(choose_process_group(group, "synchronize_parameters"), CompressionPolicy().deadline_s)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; of DTensors this rank's shards. ConfigurationError for sparse ones."""
    for module in model.modules():
        # Whole parameters replace shards after a forward pass without backward. Importing the class takes seconds.
        if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
            cast(Any, module).reshard()
    named = [*model.named_parameters(), *model.named_buffers()]
    tensors = {name: local(tensor.detach()) for name, tensor in named}
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ConfigurationError(
            f"{sparse[0]!r} is sparse, and only dense tensors can be copied to other ranks: convert it with to_dense()"
        )
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
