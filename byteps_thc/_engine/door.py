"""Opens engines for all front ends, from their arguments."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc._base.environment import variable
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import describe, warn_once
from byteps_thc._engine.agreement import SAME_TENSORS, Questions, RankAgreement, ServersAgreement
from byteps_thc._engine.device.choice import agree_on_kernels, device_of
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.factory import Scheme, flat_engine, host_engine, open_kernels
from byteps_thc._engine.hierarchy.exchange import hierarchical_engine, level_communicators, shard_elements
from byteps_thc._engine.levels import find_levels
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import State, StateDict, require_sound, with_values
from byteps_thc._engine.statistics import StatsRecorder, require_log_interval
from byteps_thc._engine.steps import LossScale, Steps, saved_scale
from byteps_thc._net.communicator import Waitable
from byteps_thc._net.ending import collect_forgotten
from byteps_thc._net.gloo import GlooCommunicator
from byteps_thc._net.groups import Communicators, refusals_told
from byteps_thc._net.mesh import Levels, MeshGroups, MeshReplicas
from byteps_thc._net.replicas import RankReplicas, Replicas
from byteps_thc._net.servers import NetworkConfig, ServersTransport
from byteps_thc._scheme.decoding.settings import RankCodes, RankKeywords


def choose_scheme(network: NetworkConfig | None, settings: RankKeywords) -> Scheme:
    """Return `network`, or the codes of ranks from a front end's keyword arguments `settings` and $THC_CONFIG.

    Warns once, on the first rank, of $THC_SERVERS without a network. Raises ConfigurationError for invalid settings,
    and for settings beside a network.
    """
    if network is None:
        codes = RankCodes.from_environment(**settings)
        if variable("SERVERS") and os.environ.get("RANK", "0") == "0":
            warn_once(
                "THC_SERVERS is ignored, ranks average without servers: pass network=NetworkConfig.from_environment() "
                "(to ThcReducer as its first argument), or unset the variable"
            )
        return codes
    RankCodes(**settings)  # reports its own mistakes first
    if settings:
        raise ConfigurationError(
            f"{', '.join(settings)}: codes of ranks, not of servers: pass NetworkConfig(codes=ServerCodes(bits=...))"
        )
    network.codes.check_environment()
    return network


def choose_policy(
    policy: object, *, network: object = None, grad_scaler: object = None, log_every: object = 0
) -> CompressionPolicy:
    """Return `policy`, or $THC_POLICY's; without a network, the policy of ranks.

    Raises ConfigurationError if one of a front end's options is wrong.
    """
    _require("policy", policy, CompressionPolicy, "CompressionPolicy(warmup_steps=100)")
    _require("network", network, NetworkConfig, 'NetworkConfig(["10.0.0.1"]), which has the servers\' addresses')
    if grad_scaler is not None and not hasattr(grad_scaler, "get_scale"):
        raise ConfigurationError(f"grad_scaler is {describe(grad_scaler)}: pass the GradScaler of the training")
    require_log_interval(log_every)
    chosen = CompressionPolicy.chosen(cast(CompressionPolicy | None, policy))
    return chosen.among_ranks() if network is None else chosen


def _require(name: str, value: object, kind: type, example: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{name} is {describe(value)}: pass {example}")


@dataclass(frozen=True)
class Worker:
    """One of `workers` workers that servers know by numbers from 0, without a process group."""

    number: int
    workers: int


@dataclass
class Opened:
    """An engine with the ranks that average and its steps.

    levels: None: one level. replicas: the ranks that average; None without a process group. questions: about each of
    the caller's own calls, asked over `communicators`.
    """

    engine: Engine
    levels: MeshGroups | None
    replicas: Replicas | None
    steps: Steps
    questions: Questions
    communicators: tuple[GlooCommunicator, ...] = ()

    @property
    def scope(self) -> str | None:
        """Name, in checkpoints, of the ranks that average the same shard; None: parameters are averaged whole."""
        return None if self.levels is None else self.levels.shard

    def sizes_here(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return the elements, by parameter, that this rank averages. sizes: of whole parameters."""
        if self.levels is None:
            return sizes
        rank, ranks = self.levels.fast.rank(), self.levels.fast.size()
        return {name: shard_elements(size, rank, ranks) for name, size in sizes.items()}

    def state_dict(self, scope: str | None = None) -> StateDict:
        """Return the engine's state with loss scale and scope; scope defaults to self.scope."""
        scaling, scope = self.steps.scaling, scope or self.scope
        scaling.undo_skipped_step()
        scoped = {} if scope is None else {"scope": scope}
        return with_values(self.engine.state_dict(), loss_scale=scaling.scale, **scoped)

    def load_state_dict(self, state: State, sizes: Mapping[str, int] | None, *, complete: bool = True) -> None:
        """Load a state_dict(); ConfigurationError if it does not fit. sizes, complete: see require_sound()."""
        require_sound(state, sizes, complete=complete)
        scale = saved_scale(state.get("loss_scale"))
        self.engine.load_state_dict(state)
        self.steps.scaling.scale = scale

    def leave(self) -> None:
        for communicator in self.communicators:
            communicator.close()


def open_engine(
    where: dist.ProcessGroup | Worker,
    levels: Levels | None,
    scheme: Scheme,
    policy: CompressionPolicy,
    *,
    gradients_on: torch.device | None = None,
    sharded: bool = False,
    asks: bool = False,
    grad_scaler: LossScale | None = None,
    sees_all: bool = False,
    log_every: int = 0,
    logs_once: bool = False,
) -> Opened:
    """Return a new engine for all ranks of a process group, or for a worker of servers; collective.

    where: the ranks that average (choose_ranks), or a worker. levels: None: one, without measuring. gradients_on:
    device of the gradients, if known. sharded: for a reduce-scatter among the ranks, in one level. asks: the caller
    uses Opened.questions. grad_scaler, log_every: see Steps. sees_all: the engine averages all gradients of a step; in
    two levels, all of a shard. logs_once: rank 0 of the world logs and warns, not rank 0 of the group.

    All ranks must call this, in the same order and with the same settings. Raises ConfigurationError while a rank
    records a CUDA graph, or if settings contradict each other or other ranks' settings, and Session's errors if servers
    cannot be joined.
    """
    engine: Engine
    network = scheme if isinstance(scheme, NetworkConfig) else None
    with refusals_told(None if isinstance(where, Worker) else where):
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            raise ConfigurationError("an engine cannot open while a CUDA graph is recorded: open the engine before")
    if isinstance(where, Worker):
        assert network is not None
        engine, questions = _open_worker(where, network, policy)
        steps = Steps(
            [engine], grad_scaler, log_every=log_every, rank=where.number, network=network, workers=where.workers
        )
        return Opened(engine, None, None, steps, questions)
    codes = scheme if isinstance(scheme, RankCodes) else None
    policy = agree_on_kernels(where, codes, policy, gradients_on, sharded=sharded)
    found = None if levels is None else find_levels(where, levels, scheme, policy)
    if found is not None:
        both = level_communicators(found, policy, callers=int(asks))
        engine = hierarchical_engine(found, scheme, policy, gradients_on, both)
        replicas: Replicas = MeshReplicas(found, policy.deadline_s)
        workers = found.slow.size()
        asked = [(both[0], found.fast.size()), (both[1], found.slow.size())] if asks else []
    else:
        asks = asks and where.size() > 1
        communicators = Communicators(where, policy.deadline_s, callers=int(asks))
        engine = flat_engine(where, scheme, policy, gradients_on, communicators, sharded=sharded)
        replicas, workers = RankReplicas(where, policy.deadline_s), where.size()
        asked = [(communicators, where.size())] if asks else []
    steps = Steps(
        [engine],
        grad_scaler,
        sees_all=sees_all and found is None,  # another shard's average may not be finite
        log_every=log_every,
        rank=replicas.world_rank if logs_once else replicas.rank,
        network=network,
        workers=workers,
        replicas=replicas,
    )
    own = [(level.for_caller(), ranks) for level, ranks in asked]
    questions = RankAgreement(*own, what="tensors", hint=SAME_TENSORS) if own else Questions()
    return Opened(engine, found, replicas, steps, questions, tuple(communicator for communicator, _ in own))


def _open_worker(where: Worker, network: NetworkConfig, policy: CompressionPolicy) -> tuple[Engine, Questions]:
    """Return the engine of a worker without a process group, and its questions to the others.

    It compresses on the current GPU if the policy says kernels="device", else in host memory. Servers only sum
    codes: raises ConfigurationError for a policy with warm-up, stop_step, bypass_elements or exclude, and Session's
    errors.
    """
    if network.failover:
        raise ConfigurationError("failover=True needs a process group, whose ranks agree on the servers: omit it")
    if "bypass_elements" not in policy.model_fields_set:
        policy = policy.model_copy(update={"bypass_elements": 0})
    if policy.warmup_steps or policy.bypass_elements or policy.exclude or policy.stop_step is not None:
        raise ConfigurationError(
            "warmup_steps, stop_step, bypass_elements and exclude need a process group, which sums what is not "
            "compressed: call torch.distributed.init_process_group() before, or omit them"
        )
    device = device_of(None, network.codes, policy, None)
    threads, recorder = policy.thread_count(), StatsRecorder()
    collect_forgotten()  # a forgotten engine may be in the same job
    worker, workers = where.number, where.workers
    kernels = open_kernels(device, network.codes, workers=workers, worker=worker, threads=threads, recorder=recorder)
    session = network.open_session(worker, workers, policy.deadline_s)
    transport = ServersTransport(session, recorder, kernels.host_zeros)
    engine = host_engine(
        kernels, policy, transport=transport, exact=_no_exact_sum, questions=Questions(), recorder=recorder
    )
    return engine, ServersAgreement(transport)


def _no_exact_sum(tensor: Tensor) -> Waitable:
    raise ConfigurationError(
        f"{tensor.numel()} elements would travel uncompressed, which needs a process group: call init_process_group() "
        "before"
    )
