"""The communication hook and its state. Annotations are not postponed: DDP compares the hook's with types."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import describe, warn_once
from byteps_thc._base.torch_private import has_communication_hook, uncompiled
from byteps_thc._engine.door import Opened, choose_policy, choose_scheme, open_engine
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.in_flight import require_not_captured
from byteps_thc._engine.parameters import apart
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import require_scope
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._engine.steps import LossScale
from byteps_thc._net.groups import refusals_told
from byteps_thc._net.mesh import Levels, choose_ranks, counted, require_levels
from byteps_thc._net.replicas import Replicas
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.decoding.settings import RankKeywords
from byteps_thc.ddp.bucket_buffers import BucketBuffers


class UncompressedState:
    """State of a DDP model copied by copy.deepcopy() or pickle: averages as plain DDP, as engines cannot be copied."""

    def __init__(self) -> None:
        if not dist.is_initialized() or dist.get_rank() == 0:
            warn_once(
                "a copied or loaded ThcState does not compress: the copy of a DDP model averages as plain DDP does. "
                "Copy ddp.module and call compress() on a DDP of the copy to compress its gradients, too"
            )

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Average a bucket over the default process group, exactly; thc_hook calls it."""
        group = dist.group.WORLD
        assert group is not None, "there is a bucket of DDP, and so a process group"
        future: Future[Tensor] = allreduce_hook(group, bucket)
        return future

    def close(self) -> None:
        """Do nothing, without an engine."""


class ThcState:
    """State of thc_hook for one DDP model: engine, schedule, and with servers residuals.

    process_group: the process group of DDP, gloo or NCCL; default: the default group.
    levels: levels of averages, default "auto". "flat" compresses over all ranks. "auto" uses two levels if several
        hosts have the same number of ranks, more than one each: over NCCL always, over gloo if a measurement finds them
        faster.
        (mesh, dim) uses two levels of a 2-D mesh of the same ranks, and dim names its slow dimension, between the
        nodes. Averages of two levels are exact within a node and compressed between nodes. Each rank of a node then has
        a shard of every parameter, and residuals, statistics and checkpoints cover the shard. `network` supports levels
        of a mesh only.
    policy: a CompressionPolicy; default: THC_POLICY, or its defaults.
    network: a NetworkConfig of servers or a switch; default: the ranks do the summing. With a mesh, shard s of a node
        uses the job network.job + s.
    model: names residuals in checkpoints after the model's parameters, without the prefixes of DDP and torch.compile.
        Default: numbers in the order of DDP's first iteration. A resumed run repeats it with the same model and
        bucket_cap_mb.
    grad_scaler: the GradScaler, default: none. Its scale must be the same on all ranks, except with a quorum or lost
        packets. Residuals follow the scale, and a skipped step restores them, at the cost of a copy per step. Without
        it, only residuals of the partition that is not finite are restored.
    log_every: steps between lines of statistics in the log of rank 0 ("byteps_thc", INFO), default 0: none.
    settings: bits, down_bits, seed and partition_bytes of codes among ranks; default: THC_CONFIG, or 4 bits each way.

    All ranks of the group make it in the same order as their other collectives, with the same settings. It may precede
    init_process_group(), for frameworks that call it later: ranks then compare settings, and join servers, in the first
    backward pass or for a checkpoint.

    Raises ConfigurationError if ranks have different settings or settings are invalid, and TransportError or
    DeadlineError if ranks or servers do not answer.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        levels: Levels = "auto",
        policy: CompressionPolicy | None = None,
        network: NetworkConfig | None = None,
        model: nn.Module | None = None,
        grad_scaler: LossScale | None = None,
        log_every: int = 0,
        **settings: Unpack[RankKeywords],
    ) -> None:
        group = None
        if process_group is not None or dist.group.WORLD is not None:
            group = choose_ranks(process_group, levels, "ThcState")
        with refusals_told(group):
            policy = choose_policy(policy, network=network, grad_scaler=grad_scaler, log_every=log_every)
            scheme = choose_scheme(network, settings)
            require_levels(levels)
            self._buckets = BucketBuffers(model, policy)
            self._buckets.check()
        self._scheme, self._policy = scheme, self._buckets.policy

        def open_averaging(gradients_on: torch.device | None) -> Opened:
            first = None if model is None else next(model.parameters(), None)
            return open_engine(
                choose_ranks(process_group, levels, "ThcState"),
                levels,
                scheme,
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
        self._closed = self._called = False
        self._warns = group is None or group.rank() == 0

    def __repr__(self) -> str:
        """Say in which levels the ranks average, with which settings, and whether they do no longer."""
        levels = "not used yet"
        if self._averaging is not None:
            levels = str(self._averaging.levels or f"flat, {counted(self.replicas.size, 'rank')}")
        return f"ThcState({levels}, {self._scheme!r}{', closed' if self._closed else ''})"

    def __reduce__(self) -> tuple[type[UncompressedState], tuple[()]]:
        """Copy and pickle as a state that does not compress."""
        return UncompressedState, ()

    @property
    def engine(self) -> Engine:
        """The engine; if the state preceded init_process_group(), the first use on all ranks opens it."""
        return self._opened().engine

    @property
    def replicas(self) -> Replicas:
        """The ranks that average their gradients."""
        replicas = self._opened().replicas
        assert replicas is not None
        return replicas

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Start averaging a bucket; thc_hook calls it."""
        # A step begins with a question to an event, which would end the recording without our error.
        require_not_captured(bucket.buffer())
        averaging = self._opened(bucket.buffer().device)
        self._called = True
        if bucket.index() == 0:
            averaging.steps.begin()
        buffer = self._buckets.buffer(bucket)
        if not self._policy.exclude and not buffer.gradient.is_complex():
            return _unwrapped(averaging.engine.all_reduce(buffer))
        return _together([averaging.engine.all_reduce(part) for part in apart(buffer, self._policy)], buffer.gradient)

    @property
    def parameter_sizes(self) -> Mapping[str, int] | None:
        """Elements by name of the model's parameters, or of this rank's shards; None without a model."""
        sizes = self._buckets.sizes()
        return None if sizes is None else self._opened().sizes_here(sizes)

    def compression_stats(self) -> CompressionStats:
        """Return statistics of this rank. Call it between steps."""
        self._warn_if_never_called()
        return self.engine.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of a checkpoint: step, random keys, settings, and residuals by parameter name if any.

        Every rank has its own state: save one per rank, as byteps_thc.checkpoint does. Call it between steps.
        """
        return self._opened().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state_dict() of the same rank, number of ranks, settings and levels.

        Raises ConfigurationError if the state does not fit or is damaged; this state is then unchanged.
        """
        averaging = self._opened()
        require_scope(state, averaging.scope)
        if isinstance(state, Mapping) and "loss_scale" not in state:
            raise ConfigurationError("the state lacks loss_scale: pass the whole result of state_dict()")
        averaging.load_state_dict(state, self.parameter_sizes)

    def close(self) -> None:
        """End the engine's threads and leave the servers. Python does so at exit, or when it collects the state."""
        if not self._closed:
            self._warn_if_never_called()
        self._closed = True
        if self._averaging is not None:
            self._averaging.steps.log()
            self._averaging.engine.close()

    def _warn_if_never_called(self) -> None:
        if self._warns and not self._called and self._buckets.any_gradient():
            warn_once(
                "a ThcState has averaged nothing, although its model has gradients: no hook calls it. Call "
                "compress(ddp), or ddp.register_comm_hook(state, thc_hook). Lightning registers hooks on GPUs only"
            )

    def _opened(self, gradients_on: torch.device | None = None) -> Opened:
        """Return the opened engine. The first call opens it if the state preceded the process group."""
        if self._averaging is None:
            assert self._open is not None
            self._averaging = self._open(gradients_on)
            self._open = None  # its model has this state, in C++, and would never go
        return self._averaging


def thc_hook(state: ThcState, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Average a bucket of gradients over the ranks, compressed; for ddp.register_comm_hook.

    state: the ThcState of the model.
    bucket: float32, float16 or bfloat16; averaged in place, bit-identical on all ranks.

    Raises InputError for sparse gradients and other dtypes, and ConfigurationError for another state. If a rank fails
    or is late, backward raises a RuntimeError with the text of TransportError or DeadlineError, and later calls
    TransportError.
    """
    if not isinstance(state, ThcState | UncompressedState):
        raise ConfigurationError(
            f"thc_hook was registered with {describe(state)} as its state, not a ThcState: call "
            "byteps_thc.ddp.compress(ddp), or ddp.register_comm_hook(ThcState(), thc_hook)"
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
    """Return a future whose error DDP understands, as a callback's: with the exception's text."""
    with suppress(Exception):  # then() hands it on
        if future.done():
            future.value()
            return future
    return future.then(Future.value)


def compress(
    ddp: nn.Module,
    *,
    levels: Levels = "auto",
    network: NetworkConfig | None = None,
    policy: CompressionPolicy | None = None,
    grad_scaler: LossScale | None = None,
    log_every: int = 0,
    **settings: Unpack[RankKeywords],
) -> ThcState:
    """Average the gradients of a DDP model compressed, and return its ThcState; collective over the ranks of the model.

        ddp = DistributedDataParallel(model)
        state = compress(ddp, bits=4)

    ddp: a DistributedDataParallel without a communication hook, or its torch.compile().
    levels: "auto" (default), "flat" or (mesh, dim): exact averages within nodes, compressed between them (ThcState).
    network: a NetworkConfig of servers or a switch; default: the ranks do the summing.
    policy: a CompressionPolicy; default: THC_POLICY, or its defaults.
    grad_scaler: the GradScaler of the training, default: none.
    log_every: steps between lines of statistics in the log of rank 0, default 0: none.
    settings: bits, down_bits, seed and partition_bytes of codes among ranks; default: THC_CONFIG, or 4 bits each way.

    Residuals are named after the model's parameters. Raises the errors of ThcState.

        mesh = init_device_mesh("cuda", (nodes, gpus_per_node), mesh_dim_names=("between", "within"))
        state = compress(ddp, levels=(mesh, "between"), bits=4)
    """
    wrapped = uncompiled(ddp)
    if not isinstance(wrapped, DistributedDataParallel):
        raise ConfigurationError(
            f"compress() needs the DistributedDataParallel that wraps the model, not a {type(wrapped).__name__}: "
            "compress(DistributedDataParallel(model)). byteps_thc.fsdp has the same for fully_shard"
        )
    with refusals_told(wrapped.process_group):
        if has_communication_hook(wrapped):
            raise ConfigurationError(
                "the model has a communication hook already, and DDP takes one: wrap the module in a new DDP"
            )
    state = ThcState(
        wrapped.process_group,
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
