"""FSDP2's reduce-scatter, compressed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from byteps_thc._engine.door import Opened, choose_config, choose_policy, open_engine
from byteps_thc._engine.engine import ShardMatrix
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._engine.steps import LossScale
from byteps_thc._net.groups import refusals_told
from byteps_thc._net.replicas import Replicas
from byteps_thc._scheme.config import ThcConfig, ThcSettings
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.settings import warn_once
from byteps_thc._scheme.torch_private import fsdp_reduce_scatter
from byteps_thc.fsdp.backward import NOTHING, BackwardSteps, PendingGradient, PendingGradients, UnhookedGroups
from byteps_thc.fsdp.parameters import (
    ParameterGroup,
    ShardedParameter,
    parameter_groups,
    require_group_dtypes,
    shard_matrix,
    with_embeddings,
)


def compress_reduce_scatter(
    model: nn.Module,
    config: ThcConfig | None = None,
    *,
    policy: CompressionPolicy | None = None,
    grad_scaler: LossScale | None = None,
    log_every: int = 0,
    **settings: Unpack[ThcSettings],
) -> FsdpCompression:
    """Compress the gradients of an FSDP2 model; collective over its ranks.

        fully_shard(model)
        compression = compress_reduce_scatter(model, bits=4)

    model: a model (and its blocks) after fully_shard() with a 1-D mesh.
    config: a ThcConfig, or its settings as keywords.
    policy: a CompressionPolicy; default: THC_POLICY, or its defaults.
    grad_scaler: the GradScaler of the training, default: none. Its scale must be the same on all ranks.
    log_every: steps between lines of statistics in the log of rank 0, default 0: none.

    Raises ConfigurationError if the model's sharding is not supported, if it is compressed already, or if ranks have
    different settings. backward() raises errors of the network.
    """
    groups = parameter_groups(model)
    process_group = groups[0].process_group
    with refusals_told(process_group):
        policy = choose_policy(policy, grad_scaler=grad_scaler, log_every=log_every)
        config = choose_config(config, settings)
        require_group_dtypes(groups, policy)
        policy = with_embeddings(policy, groups, process_group.rank())
        if any(isinstance(fsdp_reduce_scatter(group.source), CompressedReduceScatter) for group in groups):
            raise ConfigurationError("the model's reduce-scatter is compressed already: close() that handle first")
    device = groups[0].source.device
    opened = open_engine(
        process_group,
        None,
        None,
        config,
        policy,
        gradients_on=device,
        sharded=True,
        grad_scaler=grad_scaler,
        log_every=log_every,
        logs_once=True,
    )
    engine = opened.engine
    assert isinstance(engine, FlatEngine)
    pending = PendingGradients()
    unhooked = UnhookedGroups(model, groups, _warn_of_unhooked, engine.count_uncompressed)
    backward_steps = BackwardSteps(opened.steps, unhooked.begin_step, pending.settle)
    before = [(fsdp_reduce_scatter(group.source), group.source.force_sum_reduction_for_comms) for group in groups]
    for group in groups:
        # A cast, because the interface is private in torch.
        uncompressed = fsdp_reduce_scatter(group.source)
        reduce_scatter = cast(Any, CompressedReduceScatter(group, engine, backward_steps, pending, uncompressed))
        group.module.set_custom_reduce_scatter(reduce_scatter)
        # Otherwise set_gradient_divide_factor changes the operation: with sums, torch divides by itself.
        group.module.set_force_sum_reduction_for_comms(True)

    def uninstall() -> None:
        for group, (reduce_scatter, force_sum) in zip(groups, before, strict=True):
            group.module.set_custom_reduce_scatter(reduce_scatter)
            group.module.set_force_sum_reduction_for_comms(force_sum)

    parameters = [parameter for group in groups for parameter in group.parameters]
    return FsdpCompression(
        opened,
        sizes={parameter.name: parameter.elements for parameter in parameters},
        scope=_scope(process_group),
        uninstall=uninstall,
    )


def _warn_of_unhooked(groups: str) -> None:
    warn_once(
        f"compress_reduce_scatter() was called before fully_shard() of {groups}: their gradients travel uncompressed. "
        "Call it after the last fully_shard()"
    )


def _scope(process_group: dist.ProcessGroup) -> str | None:
    """Return a name for the ranks, unless they are all ranks."""
    if process_group.size() == dist.get_world_size():
        return None
    return f"group{min(dist.get_process_group_ranks(process_group))}"


class CompressedReduceScatter:
    """Reduce-scatter of one parameter group, with the interface of torch's (private) ReduceScatter.

    uncompressed: torch's own, for uncompressed steps and groups.
    """

    def __init__(
        self,
        group: ParameterGroup,
        engine: FlatEngine,
        steps: BackwardSteps,
        pending: PendingGradients,
        uncompressed: Any,
    ) -> None:
        self._uncompressed = uncompressed
        self._pending = pending
        self._group = group
        self._engine = engine
        self._steps = steps
        self._matrices: dict[tuple[ShardedParameter, ...], ShardMatrix] = {}

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for a gradient or a shard.

        size: shape.
        dtype: torch dtype.
        device: torch device.
        """
        memory: Tensor = self._uncompressed.allocate(size, dtype=dtype, device=device)
        return memory

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Write the sum (op SUM) or average (AVG) of this rank's row of `input_tensor` to `output_tensor`.

        It arrives at the end of backward if nothing needs it before (backward.py).
        """
        self._pending.finish(self._group.name)
        self._pending.wait_taken(self._group.inputs_kept - 1)
        self._steps.begin(self._group.name)
        matrix = self._matrix()
        label = f"{matrix.key}, {input_tensor.numel()} elements"
        complete = matrix.size == input_tensor.numel()
        if not complete:
            self._group.warn_of_unused()
        if not complete or not matrix.compressed or not self._engine.compressing:
            self._engine.require_same(label, matrix, input_tensor.dtype)
            self._engine.count_uncompressed(input_tensor.numel(), input_tensor.element_size())
            work: dist.Work | None = self._uncompressed(output_tensor, input_tensor, group, op, async_op)
            return work
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ConfigurationError(f"reduction {op} cannot be compressed: leave set_force_sum_reduction_for_comms on")
        factor = self._engine.workers if op == dist.ReduceOp.SUM else 1
        if output_tensor.is_cuda or self._group.gradients_are_awaited:
            self._engine.reduce_scatter(label, matrix, input_tensor, output_tensor).wait()
            self._group.multiply(output_tensor, factor)
            return None
        average = torch.empty_like(output_tensor)
        reduction = self._engine.reduce_scatter(label, matrix, input_tensor, average)
        output_tensor.fill_(NOTHING)
        self._pending.add(PendingGradient(self._group, self._group.trained(), reduction, factor))
        return None

    def _matrix(self) -> ShardMatrix:
        trained = self._group.trained()
        matrix = self._matrices.get(trained)
        if matrix is None:
            matrix = self._matrices[trained] = shard_matrix(self._group, trained, self._engine.policy)
        return matrix


class FsdpCompression:
    """Handle of a compressed FSDP2 model: state, statistics, close().

    Save with byteps_thc.checkpoint.checkpointable(handle), between steps; load with byteps_thc.checkpoint.load.
    """

    def __init__(
        self,
        opened: Opened,
        sizes: Mapping[str, int],
        scope: str | None,
        uninstall: Callable[[], None],
        replicas: Replicas | None = None,
    ) -> None:
        self._opened, self._engine = opened, opened.engine
        self._scope = scope
        self._uninstall = uninstall
        #: the ranks that have the same shards; None if each rank has its own
        self.replicas = replicas
        #: elements of a residual, by parameter name
        self.parameter_sizes = sizes

    def compression_stats(self) -> CompressionStats:
        """Return statistics of this rank."""
        return self._engine.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's state: counters, settings, and residuals by parameter name if any."""
        return self._opened.state_dict(self._scope)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state_dict() of the same rank and settings.

        Raises ConfigurationError if the state does not fit or is damaged; this state is then unchanged.
        """
        self._opened.load_state_dict(state, self.parameter_sizes)

    def close(self) -> None:
        """Restore torch's reduce-scatter and end the engine. Repeated calls are allowed."""
        self._uninstall()
        self._engine.close()
