"""The engines of the lanes: in the local root of a worker, and in the other processes of its host."""

from collections.abc import Sequence

import torch

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.adding.residuals import Rollback
from byteps_thc._engine.agreement import Questions
from byteps_thc._engine.device.choice import device_of
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.factory import Kernels, host_engine, open_kernels
from byteps_thc._engine.hierarchy.engine import NodeEngine
from byteps_thc._engine.statistics import StatsRecorder, WorkClock
from byteps_thc._net.byteps import process
from byteps_thc._net.ending import collect_forgotten
from byteps_thc._net.servers import ServersTransport
from byteps_thc._net.transport import FINGERPRINT_WORDS, Transport
from byteps_thc._scheme.block_plan import BlockPlan
from byteps_thc.torch.hosts import Bystander, HostGroup, RootExchange, open_host_groups
from byteps_thc.torch.lanes.lane import BytepsSum, Lane
from byteps_thc.torch.settings import ThcCompression


def make_engines(
    settings: ThcCompression, lanes: Sequence[Lane], sums: Sequence[BytepsSum], recorder: StatsRecorder
) -> list[Engine]:
    """Return an engine for each lane; by all processes of all workers, with the same lanes.

    Raises the route's errors, and ConfigurationError for BytePS's servers or kernels="device" with several processes
    per worker, which average in host memory.
    """
    collect_forgotten()  # forgotten engines may be in the same jobs
    if process.local_size() == 1:
        return _sending_engines(settings, lanes, sums, recorder, may_be_on_device=True)
    groups = _open_groups(settings, len(lanes))
    if process.local_rank() == 0:
        inner: Sequence[Engine] = _sending_engines(settings, lanes, sums, recorder)
    else:
        inner = [Bystander(settings.policy, exact, recorder) for exact in sums]
    workers, worker = process.workers(), process.worker()
    return [
        NodeEngine(engine, RootExchange(group, workers=workers, worker=worker), recorder)
        for group, engine in zip(groups, inner, strict=True)
    ]


def _sending_engines(
    settings: ThcCompression,
    lanes: Sequence[Lane],
    sums: Sequence[BytepsSum],
    recorder: StatsRecorder,
    *,
    may_be_on_device: bool = False,
) -> list[Engine]:
    policy, device = settings.policy, None
    if may_be_on_device:
        device = device_of(None, settings.codes, policy, _gradients_on(lanes))
    kernels = open_kernels(
        device,
        settings.codes,
        workers=process.workers(),
        worker=process.worker(),
        threads=policy.thread_count(process.local_size()),
        recorder=recorder,
    )
    open_transports = _over_byteps_servers if settings.route == "servers" else _over_the_network
    # A gradient that is not finite ends the step of all lanes. On a device they share one stream, like the rollback.
    rollback, clock = Rollback(), WorkClock()
    return [
        host_engine(
            kernels,
            policy,
            transport=transport,
            exact=exact,
            questions=Questions(),
            recorder=recorder,
            clock=clock,
            rollback=rollback,
        )
        for transport, exact in zip(open_transports(settings, lanes, kernels, recorder), sums, strict=True)
    ]


def _open_groups(settings: ThcCompression, lanes: int) -> list[HostGroup]:
    processes = process.local_size()
    if settings.policy.kernels == "device":
        raise ConfigurationError(
            f'CompressionPolicy(kernels="device"): BytePS workers of several processes (this one has {processes}) '
            "compress in host memory only: omit kernels, or use DDP, FSDP2, HSDP or ThcReducer, on NCCL or with servers"
        )
    if settings.route == "servers":
        raise ConfigurationError(
            f"route='servers' needs one BytePS worker per GPU, and this worker has {processes} processes: start "
            "bpslaunch once per GPU, with NVIDIA_VISIBLE_DEVICES naming that GPU and a DMLC_WORKER_ID of its own, or "
            "use the network route"
        )
    return open_host_groups(lanes, settings.policy.deadline_s)


def _gradients_on(lanes: Sequence[Lane]) -> torch.device | None:
    """Return the device of all parameters; None if they have several."""
    devices = {p.tensor.device for lane in lanes for buffer in lane.buffers for p in buffer.parameters}
    return devices.pop() if len(devices) == 1 else None


def _over_the_network(
    settings: ThcCompression, lanes: Sequence[Lane], kernels: Kernels, recorder: StatsRecorder
) -> list[Transport]:
    compressor = kernels.compressor
    worker, workers, deadline_s = compressor.worker, compressor.workers, settings.policy.deadline_s
    transports: list[Transport] = []
    try:
        for lane in lanes:
            network = settings.network_of_lane(lane.number)
            session = network.open_session(worker, workers, deadline_s)
            transports.append(ServersTransport(session, recorder, kernels.host_zeros))
    except BaseException:
        for transport in transports:
            transport.close()
        raise
    return transports


def _over_byteps_servers(
    settings: ThcCompression, lanes: Sequence[Lane], kernels: Kernels, recorder: StatsRecorder
) -> list[Transport]:
    compressor = kernels.compressor
    # The module needs BytePS's servers to run THC's compressor; the network route does not.
    from byteps_thc._net.byteps_servers.transport import BytepsTransport, PartitionShape

    def shape(lane: Lane, name: str, coordinates: int, plan: BlockPlan) -> PartitionShape:
        norms, padded = compressor.sizes(coordinates, plan)
        return PartitionShape(name, FINGERPRINT_WORDS + norms, padded, priority=-lane.number)

    transport = BytepsTransport(
        compressor.resolved,
        [shape(lane, *piece) for lane in lanes for piece in lane.pieces(settings.codes)],
        worker=compressor.worker,
        recorder=recorder,
        deadline_s=settings.policy.deadline_s,
        zeros=kernels.host_zeros,
    )
    return [transport] * len(lanes)
