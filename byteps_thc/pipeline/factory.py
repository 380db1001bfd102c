"""The engines on each transport: among the ranks, on a device or in host memory, or with servers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc.compressor import Compressor
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.device.choice import device_of
from byteps_thc.pipeline.device.engine import DeviceEngine
from byteps_thc.pipeline.device.recording import record_cuda_graph
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.pipeline.thc_engine import ThcEngine
from byteps_thc.transport.communicator import Communicator, Waitable
from byteps_thc.transport.groups import open_communicator, open_device_communicator
from byteps_thc.transport.handshake import ranks_on_this_host, require_same_settings, require_same_table
from byteps_thc.transport.ranks import Collectives, RanksTransport
from byteps_thc.transport.servers import NetworkConfig, ServersTransport
from byteps_thc.transport.transport import Transport

#: Bytes of gradient in a piece at most, unless ThcConfig.partition_bytes is given: DDP's buckets of 25 MiB, which their
#: last parameter may make larger, are three pieces, so that stages of one bucket overlap.
_PIECE_BYTES = 9 << 20


def collective_engine(
    process_group: dist.ProcessGroup,
    config: ThcConfig,
    policy: CompressionPolicy,
    gradients_on: torch.device | None = None,
    *,
    compress_alone: bool = False,
) -> ThcEngine | DeviceEngine:
    """Return an engine for a process group whose ranks (gloo or NCCL) are the servers too; collective.

    Pieces have _PIECE_BYTES of gradient at most unless config says something else. gradients_on: where gradients will
    be, if that is known; see CompressionPolicy.kernels. compress_alone: see DeviceEngine. ConfigurationError when ranks
    have different settings, or kernels="device" cannot be had.
    """
    workers, worker = process_group.size(), process_group.rank()
    if "partition_bytes" not in config.model_fields_set:
        config = config.model_copy(update={"partition_bytes": _PIECE_BYTES})
    # One per stage: the operations of a communicator start in the order of its thread, the same on all ranks.
    exact = open_communicator(process_group, policy.deadline_s)
    device, refusal = None, None
    try:
        device = device_of(process_group, config, policy, gradients_on)
    except ConfigurationError as error:
        refusal = error  # the other ranks, which wait for this one, get it too
    kernels = str(refusal) if refusal else "host" if device is None else "device"
    settings = {"engine": "collective", "kernels": kernels}
    require_same_settings(exact, workers, config.model_dump() | policy.shared_settings() | settings)
    if refusal is not None:
        raise refusal
    resolved = config.resolve(workers, packed_sums=True)  # on all ranks or none
    require_same_table(exact, resolved)
    if device is not None:
        from byteps_thc.gpu import GpuCompressor  # it needs Triton

        compressor = GpuCompressor(resolved, workers=workers, worker=worker, device=device)
        on_device = open_device_communicator(process_group, policy.deadline_s)
        record = record_cuda_graph if policy.cuda_graphs else None
        return DeviceEngine(compressor, policy, on_device, compress_alone=compress_alone, record=record)
    return _host_engine(process_group, resolved, policy, exact)


def _host_engine(
    process_group: dist.ProcessGroup, resolved: ResolvedConfig, policy: CompressionPolicy, exact: Communicator
) -> ThcEngine:
    workers = process_group.size()
    collectives = Collectives(*(open_communicator(process_group, policy.deadline_s) for _ in range(3)))
    threads = policy.thread_count(ranks_on_this_host(exact, workers))
    compressor = Compressor(resolved, workers=workers, worker=process_group.rank(), threads=threads)
    recorder = StatsRecorder()
    return ThcEngine(
        compressor,
        policy,
        transport=RanksTransport(resolved, collectives, recorder, compressor.pool),
        exact=exact.sum_,
        recorder=recorder,
    )


def network_engine(
    process_group: dist.ProcessGroup, config: ThcConfig, network: NetworkConfig, policy: CompressionPolicy
) -> ThcEngine:
    """Return an engine for a process group whose codes thc-ps or a switch sums; collective.

    Raises ConfigurationError when ranks have different settings, and what Session raises when servers cannot be joined.
    """
    policy.require_host_kernels("servers and switches (NetworkConfig)")
    workers, worker = process_group.size(), process_group.rank()
    exact = open_communicator(process_group, policy.deadline_s)
    settings = {"engine": "network"} | config.model_dump() | policy.shared_settings()
    require_same_settings(exact, workers, settings | network.shared_settings(workers))
    threads = policy.thread_count(ranks_on_this_host(exact, workers))
    recorder = StatsRecorder()
    session = network.open_session(config, worker, workers, policy.deadline_s)
    return ThcEngine(
        Compressor(config, workers=workers, worker=worker, threads=threads),
        policy,
        transport=ServersTransport(session, recorder),
        exact=exact.sum_,
        recorder=recorder,
    )


def make_server_engine(
    network: NetworkConfig, config: object, policy: CompressionPolicy | None, worker: int, workers: int
) -> tuple[Engine, Transport]:
    """Return an engine for one of `workers` workers without a process group, and the transport of its norms and codes.

    Servers sum codes alone, so everything is compressed: ConfigurationError for baselines and for a policy that asks
    for warm-up, stop_step or bypass_elements. Raises what Session raises.
    """
    if not isinstance(config, ThcConfig):
        raise ConfigurationError(
            f"{type(config).__name__} does not work with servers or switches, which sum THC's codes only: baselines "
            "need a process group and no NetworkConfig"
        )
    policy = policy or CompressionPolicy()
    policy.require_host_kernels("servers and switches (NetworkConfig)")
    if "bypass_elements" not in policy.model_fields_set:
        policy = policy.model_copy(update={"bypass_elements": 0})
    if policy.warmup_steps or policy.bypass_elements or policy.stop_step is not None:
        raise ConfigurationError(
            "warmup_steps, stop_step and bypass_elements need a process group, which sums what is not compressed: call "
            "torch.distributed.init_process_group() before, or leave them out"
        )
    recorder = StatsRecorder()
    compressor = Compressor(config, workers=workers, worker=worker, threads=policy.thread_count())
    transport = ServersTransport(network.open_session(config, worker, workers, policy.deadline_s), recorder)
    engine = ThcEngine(compressor, policy, transport=transport, exact=_no_exact_sum, recorder=recorder)
    return engine, transport


def _no_exact_sum(tensor: Tensor) -> Waitable:
    raise ConfigurationError(f"{tensor.numel()} elements would travel uncompressed, which needs a process group")
