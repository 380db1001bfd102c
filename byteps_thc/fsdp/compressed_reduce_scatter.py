"""FSDP2's reduce-scatter, compressed, alone or with gathers (compressed_all_gather.py)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.torch_private import fsdp_reduce_scatter
from byteps_thc._engine.door import Opened, choose_policy, open_engine
from byteps_thc._engine.engine import ShardMatrix
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.in_flight import require_not_captured
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._engine.steps import LossScale
from byteps_thc._net.groups import refusals_told
from byteps_thc._net.replicas import Replicas
from byteps_thc._scheme.decoding.settings import RankCodes, RankKeywords
from byteps_thc.fsdp.backward import NOTHING, BackwardSteps, PendingGradient, PendingGradients, UnhookedGroups
from byteps_thc.fsdp.compressed_all_gather import GatherCompression, gather_settings, one_way_codes, open_gathers
from byteps_thc.fsdp.parameters import (
    ParameterGroup,
    ShardedParameter,
    groups_of_mesh,
    parameter_groups,
    require_group_dtypes,
    shard_matrix,
    with_embeddings,
)


def compress(
    model: nn.Module,
    *,
    policy: CompressionPolicy | None = None,
    grad_scaler: LossScale | None = None,
    log_every: int = 0,
    **settings: Unpack[RankKeywords],
) -> "FsdpCompression":
    """Compress the gradients and the gathered parameters of an FSDP2 model; collective over its ranks.

        fully_shard(model)
        compression = compress(model, bits=4, down_bits=8)

    model: a model (and its blocks) after fully_shard() with a 1-D mesh.
    policy: a CompressionPolicy, whose steps only apply to gradients; default: THC_POLICY, or its defaults.
    grad_scaler: the GradScaler of the training, default: none. Its scale must be the same on all ranks.
    log_every: steps between lines of statistics in the log of rank 0, default 0: none.
    settings: bits of gradients, 4 by default, down_bits of parameters, 8 by default, seed and partition_bytes.

    Raises the errors of compress_reduce_scatter() and compress_all_gather().
    """
    return _compress(model, policy, settings, gathers=True, grad_scaler=grad_scaler, log_every=log_every)


def compress_reduce_scatter(
    model: nn.Module,
    *,
    policy: CompressionPolicy | None = None,
    grad_scaler: LossScale | None = None,
    log_every: int = 0,
    **settings: Unpack[RankKeywords],
) -> "FsdpCompression":
    """Compress the gradients of an FSDP2 model; collective over its ranks.

        fully_shard(model)
        compression = compress_reduce_scatter(model, bits=4)

    model: a model (and its blocks) after fully_shard() with a 1-D mesh.
    policy: a CompressionPolicy; default: THC_POLICY, or its defaults.
    grad_scaler: the GradScaler of the training, default: none. Its scale must be the same on all ranks.
    log_every: steps between lines of statistics in the log of rank 0, default 0: none.
    settings: bits, 4 by default, seed and partition_bytes.

    Raises ConfigurationError if the model's sharding is not supported, if it is compressed already, or if ranks have
    different settings. backward() raises errors of the network.
    """
    return _compress(model, policy, settings, gathers=False, grad_scaler=grad_scaler, log_every=log_every)


def _compress(
    model: nn.Module, policy: object, settings: RankKeywords, *, gathers: bool, **options: Any
) -> "FsdpCompression":
    """options: grad_scaler and log_every."""
    everyone = parameter_groups(model)
    groups = groups_of_mesh(everyone, _is_compressed)
    process_group = groups[0].process_group
    with refusals_told(process_group):
        chosen = choose_policy(policy, **options)
        codes = RankCodes.from_environment(**settings) if gathers else one_way_codes(settings)
        require_group_dtypes(groups, chosen)
        chosen = with_embeddings(chosen, groups, process_group.rank())
        if any(map(_is_compressed, groups)):
            raise ConfigurationError("the model's reduce-scatter is compressed already: close() that handle first")
        gathered = gather_settings(groups, codes, codes.down_bits) if gathers else None
    tools = None if gathered is None else open_gathers(groups, gathered, chosen)
    device = groups[0].source.device
    opened = open_engine(
        process_group, None, codes, chosen, gradients_on=device, sharded=True, logs_once=True, **options
    )
    engine = opened.engine
    assert isinstance(engine, FlatEngine)
    pending = PendingGradients()
    caller = "compress" if gathers else "compress_reduce_scatter"
    unhooked = UnhookedGroups(model, everyone, caller, engine.count_uncompressed)
    backward_steps = BackwardSteps(opened.steps, unhooked.begin_step, pending.settle)
    before = [(fsdp_reduce_scatter(group.source), group.source.force_sum_reduction_for_comms) for group in groups]
    for group, (uncompressed, _) in zip(groups, before, strict=True):
        # A cast, because the interface is private in torch.
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
        gathers=None if tools is None else GatherCompression(groups, chosen, tools),
    )


def _is_compressed(group: ParameterGroup) -> bool:
    return isinstance(fsdp_reduce_scatter(group.source), CompressedReduceScatter)


def _scope(process_group: dist.ProcessGroup) -> str | None:
    """Return a name for the ranks, unless they are all ranks."""
    is_all = process_group.size() == dist.get_world_size()
    return None if is_all else f"group{min(dist.get_process_group_ranks(process_group))}"


class CompressedReduceScatter:
    """Reduce-scatter of a parameter group, as torch's (private) ReduceScatter. uncompressed: torch's own."""

    def __init__(
        self,
        group: ParameterGroup,
        engine: FlatEngine,
        steps: BackwardSteps,
        pending: PendingGradients,
        uncompressed: Any,
    ) -> None:
        self._group, self._engine, self._steps = group, engine, steps
        self._pending, self._uncompressed = pending, uncompressed
        self._matrices: dict[tuple[ShardedParameter, ...], ShardMatrix] = {}

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for a gradient or a shard.

        size: shape.
        dtype: torch dtype.
        device: torch device.
        """
        return cast(Tensor, self._uncompressed.allocate(size, dtype=dtype, device=device))

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
        require_not_captured(input_tensor)
        self._pending.finish(self._group.name)
        self._pending.wait_taken(self._group.inputs_kept - 1)
        self._steps.begin(self._group.name)
        matrix = self._matrix()
        label = f"{matrix.key}, {input_tensor.numel()} elements"
        complete = matrix.size == input_tensor.numel()
        if not complete:
            self._group.warn_of_unused()
        if not complete or not matrix.compressed or not self._engine.compressing:
            # A collective of torch, which other ranks may not start, cannot be aborted.
            self._engine.require_same(label, matrix, input_tensor.dtype, waits=not complete)
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
        gathers: GatherCompression | None = None,
    ) -> None:
        self._opened, self._engine = opened, opened.engine
        self._scope, self._uninstall = scope, uninstall
        #: the ranks that have the same shards; None if each rank has its own
        self.replicas = replicas
        #: the handle of gathered parameters, closed with this one; None: they travel uncompressed
        self.gathers = gathers
        #: elements of a residual, by parameter name
        self.parameter_sizes = sizes

    def compression_stats(self) -> CompressionStats:
        """Return this rank's statistics of gradients."""
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
        """Restore torch's collectives and end the engine. Repeated calls are allowed."""
        self._uninstall()
        if self.gathers is not None:
            self.gathers.close()
        self._engine.close()
