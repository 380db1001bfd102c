"""When replicas are synchronised, and how.

synchronizer = ParameterSynchronizer(ddp, optimizer, compression=state, synchronize_every=1000)
for batch in batches:
    ...
    optimizer.step()
    synchronizer.step()
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from byteps_thc._net.handshake import by_rank, require_equal, with_rank
from byteps_thc._net.replicas import require_same_lines
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.settings import describe
from byteps_thc._synchronization.optimizer_state import broadcast_optimizer, require_optimizer
from byteps_thc._synchronization.replicated_tensors import (
    choose_replicas,
    description,
    tensors_of,
)

_logger = logging.getLogger("byteps_thc")


def synchronize_parameters(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    compression: object = None,
    grad_scaler: Any = None,
) -> None:
    """Make replicas identical, bit for bit: all get the parameters, buffers and optimizer state of rank 0; collective.

    As ParameterSynchronizer.synchronize(), for a training that knows itself when an epoch is over. Arguments and errors
    are ParameterSynchronizer's.
    """
    synchronizer = ParameterSynchronizer(model, optimizer, compression=compression, grad_scaler=grad_scaler)
    synchronizer.synchronize()


class ParameterSynchronizer:
    """Keeps replicas from drifting apart where losses or a quorum give them different averages (paper, section 6).

    model: whose parameters and buffers are copied from rank 0 to the others; with HSDP from the first replica of each
    shard, and each shard's replicas decide for themselves. optimizer: whose state and hyperparameters are copied, too;
    None: there is none. compression: what compress(), compress_replicas() or ThcReducer() has returned: its ranks
    and deadline. BytePS's optimizer is its own. Without it the ranks are those of the DDP model, or all.
    grad_scaler: the GradScaler, if there is one: ranks that drift may skip different steps.

    synchronize_every: calls of step() between synchronisations, about an epoch; None: synchronize() is called.

    Residuals of error feedback stay where they are: each is what a rank's own gradients have lost, which it still owes
    the average. Learning-rate schedulers and random states are not copied.

    All ranks make it, and call its methods, alike. Raises ConfigurationError on all of them when their settings, models
    or steps differ, naming what; TransportError or DeadlineError when another rank is gone or late. After these the
    training must restart from its checkpoint: parameters may be of two ranks.
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
        """Calls of step() so far."""
        return self._steps

    def step(self) -> bool:
        """Count an optimizer step, and synchronise when it is time; call it after optimizer.step(), on all ranks.

        Also after a step that a GradScaler has skipped. Returns whether the replicas were synchronised.
        """
        if self._every is None:
            raise ConfigurationError(
                "nothing says when to synchronise: give synchronize_every, or call synchronize() yourself"
            )
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
        """Return what a checkpoint needs to go on counting, {"steps"}; the same on all ranks."""
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict(), on all ranks the same one: the next step() compares them."""
        steps = state.get("steps") if isinstance(state, Mapping) else None
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
            raise ConfigurationError('not the state of a ParameterSynchronizer, which is {"steps": a number}')
        self._steps = steps
        self._compared = False

    def _compare_ranks(self) -> None:
        """Raise ConfigurationError on all ranks unless their settings, steps and tensors are the same."""
        mine = {"steps": self._steps, "synchronize_every": self._every, "grad_scaler": self._grad_scaler is not None}
        texts = by_rank(self._replicas.gather(with_rank(self._replicas.world_rank, json.dumps(mine))))
        require_equal({rank: json.loads(text) for rank, text in texts.items()})
        require_same_lines(self._replicas, description(self._model, self._optimizer), "models or optimizers")
