"""The communication hook, and what it needs from step to step.

Annotations are not postponed here: DDP compares the hook's with types.
"""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.futures import Future
from typing_extensions import override

from byteps_thc.baselines import BaselineConfig
from byteps_thc.config import ThcConfig, ThcSettings
from byteps_thc.ddp.bucket_buffers import BucketBuffers, ddp_of
from byteps_thc.ddp.operator import Averager, average_gradient, register_averager
from byteps_thc.engines import choose_policy, choose_scheme, find_levels, make_engine, make_hierarchical_engine
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.drift_warning import DriftWarning, may_drift
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.hierarchy.bucket_shards import shard_elements
from byteps_thc.pipeline.loss_scaling import LossScale, saved_scale
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.saved_state import require_scope, require_sound, with_values
from byteps_thc.pipeline.statistics import CompressionStats
from byteps_thc.pipeline.steps import Steps
from byteps_thc.settings import describe
from byteps_thc.transport.groups import choose_process_group
from byteps_thc.transport.mesh import MeshGroups, MeshReplicas, mesh_groups, require_mesh, require_ranks_of
from byteps_thc.transport.nodes import Nodes, require_nodes
from byteps_thc.transport.replicas import RankReplicas, Replicas
from byteps_thc.transport.servers import NetworkConfig


class ThcState(Averager):
    """State of thc_hook for one DDP model: engine, residuals, schedule.

    process_group: DDP's, None for the default one; gloo or NCCL. Or a 2-D mesh of its ranks and dim, the name of the
    slow dimension, between the nodes. nodes: without a mesh, "auto": ranks that share a host are a node where nodes
    have equal numbers of ranks, more than one, and there are several; "flat": they are not, and all ranks average
    compressed. With a mesh, or nodes that were found, averages are exact within a node, where each rank gets a shard of
    every parameter, and compressed between the nodes; residuals, figures and checkpoints are those of the shard. A
    baseline, or `network`, takes nodes of a mesh only. config: a ThcConfig, or one of byteps_thc.baselines; or give
    settings of ThcConfig as keywords. policy: warm-up, bypass of small parameters, deadline; None: CompressionPolicy().
    network: servers or a switch that sum; None: the ranks do. With a mesh, shard s of a node has the job network.job +
    s. model: names the residuals in checkpoints after the model's parameters
    (DDP's and torch.compile's prefixes left out). Without it they are numbered in the order of DDP's first iteration,
    which a resumed run repeats when model and bucket_cap_mb are the same. grad_scaler: keeps residuals in the unit of
    the scaled gradients when its scale changes, and all ranks must have the same (but those of a quorum or with
    lost packets); and when an average is not finite, so that it skips the step, all
    residuals stay as they were before, at the cost of a copy of them per step. Without it only those
    of that partition do. log_every: steps from one log line ("byteps_thc", INFO) of rank 0 to the next; 0: none.

    All ranks of the group must make it, in the same order as their other collectives and with the same settings.
    Raises ConfigurationError that names the settings which differ or cannot work, TransportError or DeadlineError when
    ranks or servers do not answer.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | DeviceMesh | None = None,
        config: ThcConfig | BaselineConfig | None = None,
        *,
        dim: str | None = None,
        nodes: Nodes = "auto",
        policy: CompressionPolicy | None = None,
        network: NetworkConfig | None = None,
        model: nn.Module | None = None,
        grad_scaler: LossScale | None = None,
        log_every: int = 0,
        **settings: Unpack[ThcSettings],
    ) -> None:
        policy = choose_policy(policy, network=network, grad_scaler=grad_scaler, log_every=log_every)
        scheme = choose_scheme(config, settings)
        require_nodes(nodes, mesh_is_given=isinstance(process_group, DeviceMesh))
        self._mesh = _mesh_groups(process_group, dim, model)
        self.engine: Engine
        #: the ranks that average their gradients
        self.replicas: Replicas
        if self._mesh is None:
            group = choose_process_group(process_group, "ThcState")
            self._mesh = find_levels(group, nodes, scheme, policy, network)
        if self._mesh is not None:
            self.engine = make_hierarchical_engine(self._mesh, scheme, policy, network, _device_of(model))
            self.replicas = MeshReplicas(self._mesh, policy.deadline_s)
            workers = self._mesh.slow.size()
        else:
            self.engine = make_engine(group, scheme, policy, network, _device_of(model))
            self.replicas = RankReplicas(group, policy.deadline_s)
            workers = group.size()
        self._buckets = BucketBuffers(model)
        self._steps = Steps(
            [self.engine],
            grad_scaler,
            sees_all=self._mesh is None,  # an average that is not finite may be that of another shard
            compared=not may_drift(network, workers),
            log_every=log_every,
            rank=self.replicas.rank,
            drift_warning=DriftWarning(network, workers, self.replicas),
        )
        #: for average_gradient
        self.number = register_averager(self)
        self._averaged: set[str] = set()  # parameters of this step, when there are no buckets

    def __repr__(self) -> str:
        """Say in which levels the ranks average."""
        return f"ThcState({self._mesh or f'flat, {self.replicas.size} ranks'})"

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Start averaging a bucket; thc_hook calls it."""
        if bucket.index() == 0:
            self._steps.begin()
        return _unwrapped(self.engine.all_reduce(self._buckets.buffer(bucket)))

    @override
    def average_parameter(self, gradient: Tensor, parameter: Tensor) -> None:
        """Average one parameter's gradient in place and wait for it; average_gradient calls it.

        A parameter that comes again begins the next step.
        """
        name = self._buckets.name(parameter)
        if not self._averaged or name in self._averaged:
            self._steps.begin()
            self._averaged.clear()
        self._averaged.add(name)
        flat = gradient.reshape(-1)
        buffer = GradientBuffer(f"parameter {name}", flat, (ParameterSlice(name, 0, flat.numel()),))
        self.engine.all_reduce(buffer).wait()
        if flat.data_ptr() != gradient.data_ptr():  # it was not contiguous
            gradient.copy_(flat.view_as(gradient))

    @property
    def parameter_sizes(self) -> Mapping[str, int] | None:
        """Elements by name of the model's parameters, in two levels of this rank's shards of them; None when the state
        was made without model.
        """
        sizes = self._buckets.sizes()
        if self._mesh is None or sizes is None:
            return sizes
        rank, ranks = self._mesh.fast.rank(), self._mesh.fast.size()
        return {name: shard_elements(size, rank, ranks) for name, size in sizes.items()}

    def compression_stats(self) -> CompressionStats:
        """Return what compression did and what it cost; call it between steps."""
        return self.engine.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of a checkpoint: residuals by parameter name, step, random keys and settings.

        Every rank has residuals of its own: save one per rank (byteps_thc.checkpoint does). Call it between steps.
        """
        self._steps.scaling.undo_skipped_step()
        scope = {} if self._mesh is None else {"scope": self._mesh.shard}
        return with_values(self.engine.state_dict(), loss_scale=self._steps.scaling.scale, **scope)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same rank, number of ranks and settings, averaged in the same levels.

        ConfigurationError when it does not fit or is damaged; then nothing has changed.
        """
        require_scope(state, None if self._mesh is None else self._mesh.shard)
        require_sound(state, self.parameter_sizes)
        if "loss_scale" not in state:
            raise ConfigurationError("not the state of a ThcState: loss_scale missing")
        scale = saved_scale(state["loss_scale"])
        self.engine.load_state_dict(state)
        self._steps.scaling.scale = scale

    def close(self) -> None:
        """End the engine's threads, and leave the servers. At the latest it happens when Python ends."""
        self._steps.log()
        self.engine.close()


def thc_hook(state: ThcState, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Average a bucket of gradients over the ranks, compressed as `state` says; for ddp.register_comm_hook.

    bucket: float32, float16 or bfloat16; it is averaged in place, the same to the bit on all ranks. Raises InputError
    for sparse gradients and other types. When a rank dies or is too late, backward raises a RuntimeError with the text
    of TransportError or DeadlineError, and TransportError itself from then on. ConfigurationError for another state.
    """
    if not isinstance(state, ThcState):
        raise ConfigurationError(
            f"thc_hook was registered with {describe(state)} as its state, not a ThcState: call "
            "byteps_thc.ddp.compress(ddp), or ddp.register_comm_hook(ThcState(None, ThcConfig()), thc_hook)"
        )
    if isinstance(bucket, tuple):  # torch.compile with optimize_ddp="python_reducer", which takes no result
        gradient, parameter = bucket
        average_gradient(gradient, parameter, state.number)
        return None  # type: ignore[return-value]
    return state.average(bucket)


def _mesh_groups(given: object, dim: str | None, model: nn.Module | None) -> MeshGroups | None:
    """Return the groups of a mesh; None when a process group is given."""
    if not isinstance(given, DeviceMesh):
        require_mesh(None, dim)
        return None
    groups = mesh_groups(given, dim, "ThcState")
    if (ddp := ddp_of(model)) is not None:
        require_ranks_of(given, ddp.process_group)
    return groups


def _device_of(model: nn.Module | None) -> torch.device | None:
    first = None if model is None else next(model.parameters(), None)
    return None if first is None else first.device


def _unwrapped(future: Future[Tensor]) -> Future[Tensor]:
    """A future whose error DDP understands; the same one where there is none, as on a device, where it is done.

    A callback that raises makes such an error, with the exception's text.
    """
    if future.done():
        try:
            future.value()
        except Exception:  # then() hands it on
            return future.then(Future.value)
        return future
    return future.then(Future.value)
