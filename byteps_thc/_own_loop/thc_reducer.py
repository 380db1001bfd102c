"""Averages of named tensors over all ranks, for training loops of any kind.

    reducer = ThcReducer(bits=4)
    reducer.all_reduce({name: parameter.grad for name, parameter in model.named_parameters()})

all_reduce(): pack -> [thread agree: do all ranks pass the same?] -> engine -> [thread finish: unpack] -> wait()
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, Unpack, overload

import torch.distributed as dist
from torch import Tensor

from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._engine.door import Worker, choose_policy, choose_scheme, open_engine
from byteps_thc._engine.in_flight import require_not_captured
from byteps_thc._engine.parameters import real_view
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import require_scope
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._engine.steps import LossScale
from byteps_thc._net.ending import Ending
from byteps_thc._net.groups import refusals_told
from byteps_thc._net.mesh import Levels, choose_ranks, counted, require_levels
from byteps_thc._net.replicas import Replicas
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._own_loop.calls import AverageWork, Call, Calls
from byteps_thc._own_loop.tensor_packing import Packing, Signature, require_memory_of_its_own, signature_of
from byteps_thc._scheme.decoding.settings import RankKeywords


class ThcReducer:
    """Average named tensors over the ranks of a process group, or over workers with servers or a switch.

    where: a process group (gloo or NCCL) whose ranks do the summing, default: the default group. Or a NetworkConfig:
        servers or a switch sum for the ranks of the default group, or for `workers` workers without one. Without a
        process group all tensors are compressed: bypass_elements is 0, and warm-up, stop_step and exclude raise
        ConfigurationError.
    levels: levels of ThcState, default "auto". With two levels residuals, statistics and checkpoints cover a rank's
        shards.
    policy: a CompressionPolicy; default: THC_POLICY, or its defaults.
    rows: names of tensors whose rows have a scale each, added to policy.rows; default: none.
    worker: number of this worker, 0 .. workers - 1. Only without a process group.
    workers: number of workers. Only without a process group.
    grad_scaler: the GradScaler of the training, default: none. Requires waiting for calls one by one.
    log_every: steps between lines of statistics in the log of rank 0 ("byteps_thc", INFO), default 0: none.
    settings: bits, down_bits, seed and partition_bytes of codes among ranks; default: THC_CONFIG, or 4 bits each way.

    Every all_reduce() is one step of policy and statistics. Residuals, 4 bytes per element, belong to the names. A
    reducer is a context manager. Only one thread may use it at a time. All ranks make it in the same order as their
    other collectives, with the same settings.

    Raises ConfigurationError if ranks have different settings or settings are invalid, and TransportError or
    DeadlineError if ranks or servers do not answer.
    """

    def __init__(
        self,
        where: dist.ProcessGroup | NetworkConfig | None = None,
        *,
        levels: Levels = "auto",
        policy: CompressionPolicy | None = None,
        rows: Sequence[str] | None = None,
        worker: int | None = None,
        workers: int | None = None,
        grad_scaler: LossScale | None = None,
        log_every: int = 0,
        **settings: Unpack[RankKeywords],
    ) -> None:
        if "network" in settings:
            raise ConfigurationError("network: pass the NetworkConfig as the first argument")
        network = where if isinstance(where, NetworkConfig) else None
        group, given = None, None if network is not None else where
        if network is None or dist.group.WORLD is not None:
            group = choose_ranks(given, levels, "ThcReducer")
        with refusals_told(group):
            require_levels(levels)
            if dist.group.WORLD is not None and (worker is not None or workers is not None):
                raise ConfigurationError("worker and workers are for training without a process group: omit them")
            policy = choose_policy(policy, network=network, grad_scaler=grad_scaler, log_every=log_every)
            policy = policy.with_rows(rows or ())
            scheme = choose_scheme(network, settings)
        ranks = group if group is not None else _worker(worker, workers)
        opened = open_engine(ranks, levels, scheme, policy, asks=True, grad_scaler=grad_scaler, log_every=log_every)
        self._opened, self._engine = opened, opened.engine
        #: the ranks that average; None without a process group
        self.replicas: Replicas | None = opened.replicas
        # Without a process group nobody sums exactly.
        self._policy = policy.model_copy(update={"bypass_elements": 0}) if self.replicas is None else policy
        self._grad_scaler = grad_scaler
        self._calls = Calls(
            self._engine, opened.questions, opened.steps, asks_once=self.replicas is None, leave=opened.leave
        )
        self._closed = False
        self._ending = Ending(self, self._calls.close)

    def __repr__(self) -> str:
        """Say in which levels the tensors are averaged, and whether they are no longer."""
        levels = self._opened.levels or f"flat, {counted(self._engine.workers, 'worker')}"
        return f"ThcReducer({levels}{', closed' if self._closed else ''})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def all_reduce(self, tensors: Mapping[str, Tensor], async_op: Literal[False] = False) -> None: ...

    @overload
    def all_reduce(self, tensors: Mapping[str, Tensor], async_op: Literal[True]) -> AverageWork: ...

    @overload
    def all_reduce(self, tensors: Mapping[str, Tensor], async_op: bool) -> AverageWork | None: ...

    def all_reduce(self, tensors: Mapping[str, Tensor], async_op: bool = False) -> AverageWork | None:
        """Replace every tensor by its average over the ranks, bit-identical on all ranks; collective.

        tensors: by name, float32, float16 or bfloat16, any shape, on CPU or CUDA. Mixed dtypes, non-contiguous and
            empty tensors, and parameters that require gradients are supported. All ranks pass the same names with the
            same numbers of elements in the same order; calls may have different names. A name keeps its size, dtype and
            device.
        async_op: return an AverageWork at once, default False: wait, and return None. Keep the tensors unchanged until
            wait(); calls in flight need different names.

        A tensor that is not finite on one rank makes NaN of its blocks of 64 elements on all ranks.

        Raises InputError for unsupported tensors, and (with async_op from wait()) if ranks pass different tensors. All
        tensors are then unchanged, and the reducer stays usable. If only one rank raises, the others wait for its next
        call, or until the deadline. Raises DeadlineError or TransportError if other ranks or servers fail, and
        ConfigurationError if a tensor does not fit the loaded state; the reducer is then closed.
        """
        signature = signature_of(tensors, self._policy)
        require_memory_of_its_own(tensors)
        packing = self._calls.packings.get(signature) or self._new_packing(signature)
        own = [real_view(tensor.detach()) for tensor in tensors.values()]
        require_not_captured(*own)
        if self._grad_scaler is not None:
            self._calls.require_idle("all_reduce with a grad_scaler")
            self._opened.steps.scaling.begin_backward()
        work = AverageWork(list(tensors.values()), packing.cuda_devices)
        self._calls.submit(Call(packing, own, work, reducer=self))
        if async_op:
            return work
        work.wait()
        return None

    @property
    def parameter_sizes(self) -> Mapping[str, int] | None:
        """Elements by name of all tensors, or of this rank's shards with two levels; None before the first call."""
        sizes = {name: size for name, size, *_ in tuple(self._calls.known.values())}
        return self._opened.sizes_here(sizes) or None

    def compression_stats(self) -> CompressionStats:
        """Return statistics of this rank. Call it when no call is in flight."""
        return self._engine.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's part of a checkpoint: step, random keys, settings, and residuals by name if any.

        Every rank has its own state: save one per rank, as byteps_thc.checkpoint does.

        Raises InputError if a call is in flight.
        """
        self._calls.require_idle("state_dict")
        return self._opened.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state_dict() of the same rank, number of ranks, settings and levels.

        Raises ConfigurationError if the state does not fit, and InputError if a call is in flight; the reducer is then
        unchanged.
        """
        self._calls.require_idle("load_state_dict")
        require_scope(state, self._opened.scope)
        self._opened.load_state_dict(state, self.parameter_sizes, complete=False)

    def close(self) -> None:
        """End the threads and leave the servers. Calls in flight fail.

        Python also closes a reducer at exit, or when it is collected and no call is in flight.
        """
        self._closed = True
        self._ending.close()

    def _new_packing(self, signature: tuple[Signature, ...]) -> Packing:
        for now in signature:
            before = self._calls.known.get(now[0], now)
            if now != before:
                raise InputError(
                    f"{now[0]!r} has {_words(now)}, and had {_words(before)} in an earlier call: give another tensor "
                    "another name"
                )
        if not self._calls.known:
            rank = self._engine.worker
            self._policy.warn_of_unmatched((name for name, *_ in signature), rank)
            self._policy.warn_if_all_travel_exactly(((name, size, row) for name, size, row, *_ in signature), rank)
        return Packing(signature, self._policy)


def _worker(worker: int | None, workers: int | None) -> Worker:
    if worker is None or workers is None:
        raise ConfigurationError(
            "ThcReducer needs a process group, or a worker's number: call torch.distributed.init_process_group() "
            "before, or pass ThcReducer(NetworkConfig(...), worker=0, workers=2)"
        )
    return Worker(worker, workers)


def _words(signature: Signature) -> str:
    _, size, _, dtype, device = signature
    return f"{size} elements of {dtype} on {device}"
