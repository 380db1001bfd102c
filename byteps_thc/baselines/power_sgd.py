"""PowerSGD through torch's own DDP hook, with the interface of the other baselines.

Vogels et al., "PowerSGD: practical low-rank gradient compression for distributed optimization" (NeurIPS 2019): a
gradient matrix M [n, m] is approximated by P Q^T with `rank` columns; P and Q are averaged with two all-reduces, one
after the other, and what the approximation lacks is added to the next gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from pydantic import Field
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from typing_extensions import override

from byteps_thc.baselines.config import BaselineConfig
from byteps_thc.baselines.delivery import is_finite
from byteps_thc.pipeline.agreement import RankAgreement, contents_of
from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.loss_scaling import ScaledEngine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.statistics import CompressionStats
from byteps_thc.transport.groups import open_communicator

_UNCOMPRESSED_STEPS = 2  # torch's hook needs them: DDP rebuilds its buckets after the first step


class PowerSgd(BaselineConfig):
    """Low-rank gradients: rank * (n + m) numbers for a matrix of n * m. DDP only."""

    rank: int = Field(default=1, ge=1)
    """columns of P and Q"""
    min_compression_rate: float = Field(default=2.0, gt=0)
    """tensors that would not shrink by this factor travel uncompressed; bypass_elements is not used"""
    error_feedback: bool = True
    """add what the approximation lacks to the next gradient"""
    warm_start: bool = True
    """begin with the last step's Q"""
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    """selects the first Q"""


class PowerSgdEngine(ScaledEngine):
    """Averages DDP buckets with torch's powerSGD_hook. It needs the parameters' shapes, so it takes whole GradBuckets.

    Before a bucket is averaged, its parameters and the loss scale are compared with those of the other ranks.

    The first steps are uncompressed: policy.warmup_steps of them, at least 2. Waits end after the process group's own
    timeout, not after policy.deadline_s. A bucket whose average is not finite begins again without residual.
    """

    def __init__(self, process_group: dist.ProcessGroup, config: PowerSgd, policy: CompressionPolicy) -> None:
        self.workers = process_group.size()
        self.worker = process_group.rank()
        self._process_group = process_group
        self._config = config
        self._policy = policy
        self._state = EngineState(self.worker, self.workers, config.shared_settings())
        self._recorder = self._state.recorder
        communicator = open_communicator(process_group, policy.deadline_s) if self.workers > 1 else None
        self._agreement = None if communicator is None else RankAgreement(communicator, self.workers)
        self._begin(max(policy.warmup_steps, _UNCOMPRESSED_STEPS))

    def start_step(self) -> None:
        """Begin an optimizer step; called once, before its first bucket."""
        self._state.start_step()

    def all_reduce_bucket(self, bucket: GradBucket, buffer: GradientBuffer) -> Future[Tensor]:
        """Start averaging a bucket, in place; what a DDP communication hook has to do. buffer: the same gradients.

        InputError, on all ranks, when they have different ones.
        """
        if self._agreement is not None:
            contents = contents_of(buffer.key, buffer.parameters)
            self._agreement.require_same(contents, self._state.loss_scale, f"step {self._state.step}")
        size = bucket.buffer().numel()
        stopped = self._policy.stop_step is not None and self._state.steps > self._policy.stop_step
        if stopped or self.workers == 1 or self._hook_state.iter < self._hook_state.start_powerSGD_iter:
            self._hook_state.maybe_increase_iter(bucket)  # type: ignore[no-untyped-call]
            self._recorder.add_gradient(uncompressed=size)
            self._count(size, bucket)
            return allreduce_hook(self._process_group, bucket)
        sent_before = self._hook_state.total_numel_after_compression
        future = powerSGD_hook(self._hook_state, bucket)
        self._recorder.add_gradient(compressed=size)
        self._count(self._hook_state.total_numel_after_compression - sent_before, bucket)
        index = bucket.index()
        return future.then(lambda done: self._forget_unless_finite(done, index))

    @override
    def protect_step(self) -> None:
        pass  # nothing can be brought back: torch's hook has overwritten what it keeps by then

    @override
    def restore_residuals(self) -> None:
        pass  # see protect_step()

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._state.loss_scale = scale

    @override
    def scale_residuals(self, factor: float) -> None:
        for residual in self._hook_state.error_dict.values():
            residual.mul_(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's checkpoint needs, in the form of Engine.state_dict().

        Without residuals: torch's hook keeps them by bucket, and a resumed DDP has other buckets.
        """
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same rank and settings; ConfigurationError when it does not fit.

        The next two steps are uncompressed, and residuals begin at zero.
        """
        self._state.load_state_dict(state)
        self._begin(max(self._policy.warmup_steps - self._state.steps, _UNCOMPRESSED_STEPS))

    def statistics(self) -> CompressionStats:
        """Return what travelled. Times and errors are not measured: torch's hook does not tell."""
        return self._recorder.snapshot()

    def close(self) -> None:
        """Do nothing: there are no threads to end."""

    def _begin(self, uncompressed_steps: int) -> None:
        config = self._config
        self._hook_state = PowerSGDState(
            self._process_group,
            matrix_approximation_rank=config.rank,
            start_powerSGD_iter=uncompressed_steps,
            min_compression_rate=config.min_compression_rate,
            use_error_feedback=config.error_feedback,
            warm_start=config.warm_start,
            random_seed=config.seed,
        )

    def _count(self, numbers: int, bucket: GradBucket) -> None:
        self._recorder.add_collective(2 * numbers * bucket.buffer().element_size(), self.workers)

    def _forget_unless_finite(self, done: Future[Tensor], index: int) -> Tensor:
        average = done.value()
        if not is_finite(average):
            # The residual and Q of the bucket are NaN on all ranks by now, and would make all later averages NaN.
            for memory in (self._hook_state.error_dict, self._hook_state.p_memory_dict, self._hook_state.q_memory_dict):
                memory.pop(index, None)
        return average
