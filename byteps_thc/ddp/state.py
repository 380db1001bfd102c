"""The communication hook, and what it needs from step to step.

Annotations are not postponed here: DDP compares the hook's with types.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._engine.door import Opened, choose_config, choose_policy, open_engine, warn_of_unused_servers
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.parameters import apart
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import require_scope
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._engine.steps import LossScale
from byteps_thc._net.groups import choose_process_group, refusals_told
from byteps_thc._net.mesh import Levels, counted, require_levels
from byteps_thc._net.replicas import Replicas
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.config import ThcConfig, ThcSettings
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.settings import describe, warn_once
from byteps_thc.ddp.bucket_buffers import BucketBuffers


class UncompressedState:
    """The state of a copied DDP model, made by copy.deepcopy() and pickle; says once in the log what it does.

    It averages as plain DDP: an engine's connections, threads and part in the ranks' order of collectives have no copy.
    """

    def __init__(self) -> None:
        warn_once(
            "a copied or loaded ThcState does not compress: the copy of a DDP model averages as plain DDP does. Copy "
            "ddp.module and call compress() on a DDP of the copy to compress its gradients, too"
        )

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Average a bucket over the default process group, exactly; thc_hook calls it."""
        group = dist.group.WORLD
        assert group is not None, "there is a bucket of DDP, and so a process group"
        future: Future[Tensor] = allreduce_hook(group, bucket)
        return future

    def close(self) -> None:
        """Do nothing: there is no engine."""


class ThcState:
    """State of thc_hook for one DDP model: engine, schedule, and with servers residuals.

    process_group: DDP's, None for the default one; gloo or NCCL. levels: "flat": all ranks average compressed. "auto":
    ranks that share a host are a node if there are several nodes with equal numbers of ranks, more than one, over gloo
    if two levels are the faster way, measured here. (mesh, dim): a 2-D mesh of the same ranks, and the name of its slow
    dimension, between the nodes. With two levels averages are exact within a node, where each rank gets a shard of
    every parameter, and compressed between the nodes; residuals, figures and checkpoints are the shard's. `network`
    takes two levels of a mesh only. config: a ThcConfig; or settings of ThcConfig as keywords. policy: warm-up, bypass
    of small parameters, deadline; None: CompressionPolicy(). network: servers or a switch that sum; None: the ranks do.
    With a mesh, shard s of a node has the job network.job + s. model: names the residuals in checkpoints after the
    model's parameters (DDP's and torch.compile's prefixes left out). Without it they are numbered in the order of DDP's
    first iteration, which a resumed run repeats when model and bucket_cap_mb are the same. grad_scaler: its scale must
    be the same on all ranks, but for those of a quorum or with lost packets. Residuals follow the scale, and a skipped
    step restores all of them, which costs a copy per step. Without it, only residuals of the partition that is not
    finite are restored. log_every: steps from one log line ("byteps_thc", INFO) of rank 0 to the next; 0: none.

    All ranks of the group must make it, in the same order as their other collectives and with the same settings. It may
    be made before there is a default process group, for a framework that initialises torch.distributed later: settings
    are compared, and servers joined, when all ranks first use it, in the first backward pass or for a checkpoint.
    Raises ConfigurationError that names the settings which differ or cannot work, TransportError or DeadlineError when
    ranks or servers do not answer.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        config: ThcConfig | None = None,
        *,
        levels: Levels = "auto",
        policy: CompressionPolicy | None = None,
        network: NetworkConfig | None = None,
        model: nn.Module | None = None,
        grad_scaler: LossScale | None = None,
        log_every: int = 0,
        **settings: Unpack[ThcSettings],
    ) -> None:
        group = None
        if process_group is not None or dist.group.WORLD is not None:
            group = choose_process_group(process_group, "ThcState")
        with refusals_told(group):
            policy = choose_policy(policy, network=network, grad_scaler=grad_scaler, log_every=log_every)
            config = choose_config(config, settings)
            require_levels(levels)
            warn_of_unused_servers(network)
            self._buckets = BucketBuffers(model, policy)
            self._buckets.check()
        self._config, self._policy = config, self._buckets.policy

        def open_averaging(gradients_on: torch.device | None) -> Opened:
            # Without a process group, the ranks of a mesh: they may be some of all.
            of_mesh = process_group is None and not isinstance(levels, str)
            first = None if model is None else next(model.parameters(), None)
            return open_engine(
                None if of_mesh else choose_process_group(process_group, "ThcState"),
                levels,
                network,
                config,
                self._policy,
                gradients_on=gradients_on if first is None else first.device,
                grad_scaler=grad_scaler,
                sees_all=True,
                log_every=log_every,
            )

        self._open: Callable[[torch.device | None], Opened] | None = open_averaging
        self._averaging: Opened | None = None
        if group is not None:
            self._opened()
        self._closed = False
        self._called = False

    def __repr__(self) -> str:
        """Say in which levels the ranks average, with which settings, and whether they do no longer."""
        config = self._config
        given = ", ".join(f"{name}={getattr(config, name)!r}" for name in sorted(config.model_fields_set))
        levels = "not used yet"
        if self._averaging is not None:
            levels = str(self._averaging.levels or f"flat, {counted(self.replicas.size, 'rank')}")
        return f"ThcState({levels}, ThcConfig({given}){', closed' if self._closed else ''})"

    def __reduce__(self) -> tuple[type[UncompressedState], tuple[()]]:
        """Copy and pickle as a state that does not compress."""
        return UncompressedState, ()

    @property
    def engine(self) -> Engine:
        """What averages; made now where the state was made before there was a process group, by all ranks."""
        return self._opened().engine

    @property
    def replicas(self) -> Replicas:
        """The ranks that average their gradients."""
        replicas = self._opened().replicas
        assert replicas is not None
        return replicas

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Start averaging a bucket; thc_hook calls it."""
        averaging = self._opened(bucket.buffer().device)
        self._called = True
        if bucket.index() == 0:
            averaging.steps.begin()
        buffer = self._buckets.buffer(bucket)
        if not self._policy.exclude:
            return _unwrapped(averaging.engine.all_reduce(buffer))
        return _together([averaging.engine.all_reduce(part) for part in apart(buffer, self._policy)], buffer.gradient)

    @property
    def parameter_sizes(self) -> Mapping[str, int] | None:
        """Elements by name of the model's parameters, in two levels of this rank's shards of them; None when the state
        was made without model.
        """
        sizes = self._buckets.sizes()
        return None if sizes is None else self._opened().sizes_here(sizes)

    def compression_stats(self) -> CompressionStats:
        """Return what compression did and what it cost; call it between steps."""
        self._warn_if_never_called()
        return self.engine.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of a checkpoint: step, random keys, settings, and residuals by parameter name if any.

        Every rank has a state of its own: save one per rank (byteps_thc.checkpoint does). Call it between steps.
        """
        return self._opened().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same rank, number of ranks and settings, averaged in the same levels.

        ConfigurationError when it does not fit or is damaged; then nothing has changed.
        """
        averaging = self._opened()
        require_scope(state, averaging.scope)
        if isinstance(state, Mapping) and "loss_scale" not in state:
            raise ConfigurationError("the state lacks loss_scale: pass the whole result of state_dict()")
        averaging.load_state_dict(state, self.parameter_sizes)

    def close(self) -> None:
        """End the engine's threads, and leave the servers. A collected state does so, too, or Python's end."""
        if not self._closed:
            self._warn_if_never_called()
        self._closed = True
        if self._averaging is not None:
            self._averaging.steps.log()
            self._averaging.engine.close()

    def _warn_if_never_called(self) -> None:
        if not self._called and self._buckets.any_gradient():
            warn_once(
                "a ThcState has averaged nothing, although its model has gradients: no hook calls it. Call "
                "compress(ddp), or ddp.register_comm_hook(state, thc_hook). Lightning registers hooks on GPUs only"
            )

    def _opened(self, gradients_on: torch.device | None = None) -> Opened:
        """Return what averages; the first call makes it, where there was no process group before."""
        if self._averaging is None:
            assert self._open is not None
            self._averaging = self._open(gradients_on)
            self._open = None  # its model has this state, in C++, and would never go
        return self._averaging


def thc_hook(state: ThcState, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Average a bucket of gradients over the ranks, compressed as `state` says; for ddp.register_comm_hook.

    bucket: float32, float16 or bfloat16; it is averaged in place, the same to the bit on all ranks. Raises InputError
    for sparse gradients and other types. When a rank dies or is too late, backward raises a RuntimeError with the text
    of TransportError or DeadlineError, and TransportError itself from then on. ConfigurationError for another state.
    """
    if not isinstance(state, ThcState | UncompressedState):
        raise ConfigurationError(
            f"thc_hook was registered with {describe(state)} as its state, not a ThcState: call "
            "byteps_thc.ddp.compress(ddp), or ddp.register_comm_hook(ThcState(None, ThcConfig()), thc_hook)"
        )
    if isinstance(bucket, tuple):
        raise ConfigurationError(
            'torch._dynamo.config.optimize_ddp = "python_reducer" calls hooks without buckets: leave it at its default'
        )
    return state.average(bucket)


def _together(futures: Sequence[Future[Tensor]], gradient: Tensor) -> Future[Tensor]:
    """Return a future of a gradient whose parts are averaged; engines finish them in their order."""

    def finish(_: Future[Tensor]) -> Tensor:
        for future in futures:
            future.wait()
        return gradient

    return futures[-1].then(finish)


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


def compress(
    ddp: nn.Module,
    config: ThcConfig | None = None,
    *,
    levels: Levels = "auto",
    network: NetworkConfig | None = None,
    policy: CompressionPolicy | None = None,
    grad_scaler: LossScale | None = None,
    log_every: int = 0,
    **settings: Unpack[ThcSettings],
) -> ThcState:
    """Average the gradients of a DDP model compressed, over the ranks of its process group; collective over them.

        ddp = DistributedDataParallel(model)
        state = compress(ddp, bits=4)

    ddp: a DistributedDataParallel without a communication hook, or torch.compile() of one. config: a
    ThcConfig; or settings of ThcConfig as keywords, as here. levels: "flat":
    averages are compressed over all ranks. "auto": if several hosts have equal numbers of ranks, more than one each,
    averages may be exact within a host and compressed between the hosts: over NCCL they are, over gloo if that is the
    faster way, measured here. (mesh, dim): a 2-D mesh of the same ranks and the name of a dimension: averages are exact
    within the nodes, and compressed over the named dimension, between the nodes. Other arguments and errors: as
    ThcState's, which is returned and names residuals after the model's parameters.

        mesh = init_device_mesh("cuda", (nodes, gpus_per_node), mesh_dim_names=("between", "within"))
        state = compress(ddp, levels=(mesh, "between"), bits=4)
    """
    wrapped = getattr(ddp, "_orig_mod", ddp)
    if not isinstance(wrapped, DistributedDataParallel):
        raise ConfigurationError(
            f"compress() needs the DistributedDataParallel that wraps the model, not a {type(wrapped).__name__}: "
            "compress(DistributedDataParallel(model)). byteps_thc.fsdp has the same for fully_shard"
        )
    with refusals_told(wrapped.process_group):
        if wrapped._comm_hooks:
            raise ConfigurationError(
                "the model has a communication hook already, and DDP takes one: wrap the module in a new DDP"
            )
    state = ThcState(
        wrapped.process_group,
        config,
        levels=levels,
        policy=policy,
        network=network,
        model=wrapped,
        grad_scaler=grad_scaler,
        log_every=log_every,
        **settings,
    )
    try:
        wrapped.register_comm_hook(state, thc_hook)
    except RuntimeError:  # torch knows of more that keeps a hook out, such as a built-in one
        state.close()
        raise
    return state
