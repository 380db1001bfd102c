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
from byteps_thc._synchronization.drift import drift, sketch
from byteps_thc._synchronization.optimizer_state import broadcast_optimizer, require_optimizer
from byteps_thc._synchronization.replicated_tensors import (
    CompressionHandle,
    choose_handle,
    choose_replicas,
    description,
    parameters_to_measure,
    tensors_of,
)
from byteps_thc._synchronization.settings import SynchronizationSettings

_logger = logging.getLogger("byteps_thc")


def synchronize_parameters(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    compression: CompressionHandle | None = None,
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
    None: there is none. compression: what compress(), compress_replicas() or ThcReducer() has returned: its ranks,
    deadline and statistics. BytePS's optimizer is its own. Without it the ranks are those of the DDP model, or all.
    grad_scaler: the GradScaler, if there is one: ranks that drift may skip different steps.

    synchronize_every: calls of step(), about an epoch; None: not by number. max_drift: synchronise when the distance
    of a rank's parameters from rank 0's, relative to their norm, is larger; 1e-5 or more. max_loss_rate: when a rank
    has missed a larger share of the workers' contributions since the last check; needs `compression`. Both are checked
    every `check_every` steps.

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
        compression: CompressionHandle | None = None,
        grad_scaler: Any = None,
        synchronize_every: int | None = None,
        max_drift: float | None = None,
        max_loss_rate: float | None = None,
        check_every: int = 100,
    ) -> None:
        self._settings = SynchronizationSettings(
            synchronize_every=synchronize_every,
            max_drift=max_drift,
            max_loss_rate=max_loss_rate,
            check_every=check_every,
        )
        if not isinstance(model, nn.Module):
            raise ConfigurationError(f"the first argument is the model, not {describe(model)}")
        if optimizer is not None:
            require_optimizer(optimizer)
        self._model, self._optimizer, self._grad_scaler = model, optimizer, grad_scaler
        self._handle = choose_handle(optimizer, compression)
        if max_loss_rate is not None and self._handle is None:
            raise ConfigurationError("max_loss_rate needs compression=..., whose statistics have the losses")
        self._replicas = choose_replicas(model, self._handle)
        self._replicas.synchronized = True
        self._steps = 0
        self._contributions = self._counted_contributions()
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
        settings = self._settings
        if not settings.automatic:
            raise ConfigurationError(
                "nothing says when to synchronise: give synchronize_every, max_drift or max_loss_rate, or call "
                "synchronize() yourself"
            )
        if not self._compared:  # after load_state_dict(): ranks that count differently would wait for each other
            self._compare_ranks()
            self._compared = True
        self._steps += 1
        reason = ""
        if settings.synchronize_every is not None and self._steps % settings.synchronize_every == 0:
            reason = f"every {settings.synchronize_every} steps"
        elif settings.checks and self._steps % settings.check_every == 0:
            reason = self._check()
        if not reason:
            return False
        self.synchronize()
        if self._replicas.is_root:
            _logger.info("step %d: parameters synchronised (%s)", self._steps, reason)
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
        self._contributions = self._counted_contributions()

    def measure_drift(self) -> float:
        """Return the largest distance of a rank's parameters from rank 0's, relative to their norm; collective.

        An estimate, within a few per cent; differences below 1e-6 are rounding of the estimate itself. Infinite when
        parameters are not finite.
        """
        gathered = self._gather("measure_drift", {"drift": self._sketch()})
        return drift([theirs["drift"] for theirs in gathered.values()])

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

    def _check(self) -> str:
        """Return why to synchronise, "" for no reason; the same on all ranks, which know what all have measured."""
        settings = self._settings
        mine: dict[str, Any] = {}
        if settings.max_loss_rate is not None:
            mine["loss rate"] = self._take_loss_rate()
        if settings.max_drift is not None:
            mine["drift"] = self._sketch()
        gathered = self._gather("check", mine)
        if settings.max_loss_rate is not None:
            rate = max(theirs["loss rate"] for theirs in gathered.values())
            if rate > settings.max_loss_rate:
                return f"loss rate {rate:.3g}"
        if settings.max_drift is not None:
            distance = drift([theirs["drift"] for theirs in gathered.values()])
            if distance > settings.max_drift:
                return f"drift {distance:.3g}"
        return ""

    def _sketch(self) -> dict[str, Any]:
        return sketch(parameters_to_measure(self._model), self._steps)

    def _counted_contributions(self) -> tuple[int, int]:
        if self._settings.max_loss_rate is None or self._handle is None:
            return 0, 0
        stats = self._handle.compression_stats()
        return stats.expected_contributions, stats.missing_contributions

    def _take_loss_rate(self) -> float:
        """Return the share of contributions that this rank has missed since the last call or synchronisation."""
        before, self._contributions = self._contributions, self._counted_contributions()
        expected, missing = (now - then for now, then in zip(self._contributions, before, strict=True))
        return missing / expected if expected else 0.0

    def _compare_ranks(self) -> None:
        """Raise ConfigurationError on all ranks unless their settings, steps and tensors are the same."""
        mine = self._settings.model_dump() | {"grad_scaler": self._grad_scaler is not None}
        require_equal(self._gather("compare", mine))
        require_same_lines(self._replicas, description(self._model, self._optimizer), "models or optimizers")

    def _gather(self, what: str, mine: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return what each rank passes. ConfigurationError on all of them unless they are at one step and place."""
        text = json.dumps({"place": {"synchronizer": what, "steps": self._steps}} | mine)
        texts = by_rank(self._replicas.gather(with_rank(self._replicas.world_rank, text)))
        gathered = {rank: json.loads(text) for rank, text in texts.items()}
        require_equal({rank: theirs.pop("place") for rank, theirs in gathered.items()})
        return gathered
