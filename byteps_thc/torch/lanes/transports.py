"""The two ways of the codes: a transport for every lane."""

from __future__ import annotations

from collections.abc import Sequence

from byteps_thc._engine.kernels import Kernels
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.servers import ServersTransport
from byteps_thc._net.transport import FINGERPRINT_WORDS, Transport
from byteps_thc._scheme.block_plan import BlockPlan
from byteps_thc.torch.lanes.plan import Lane
from byteps_thc.torch.settings import ThcCompression


def open_transports(
    settings: ThcCompression, lanes: Sequence[Lane], kernels: Kernels, recorder: StatsRecorder
) -> list[Transport]:
    """Connect all lanes; on all workers, with the same lanes.

    network: raises what Session raises. servers: what BytepsTransport raises.
    """
    if settings.route == "servers":
        return _over_byteps_servers(settings, lanes, kernels, recorder)
    return _over_the_network(settings, lanes, kernels, recorder)


def _over_the_network(
    settings: ThcCompression, lanes: Sequence[Lane], kernels: Kernels, recorder: StatsRecorder
) -> list[Transport]:
    compressor = kernels.compressor
    worker, workers, deadline_s = compressor.worker, compressor.workers, settings.policy.deadline_s
    transports: list[Transport] = []
    try:
        for lane in lanes:
            network = settings.network_of_lane(lane.number)
            session = network.open_session(settings.config, worker, workers, deadline_s)
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
    # The module needs BytePS's servers to run our compressor; the network route does not.
    from byteps_thc._net.byteps_servers.transport import BytepsTransport, PartitionShape

    def shape(lane: Lane, name: str, coordinates: int, plan: BlockPlan) -> PartitionShape:
        norms, padded = compressor.sizes(coordinates, plan)
        return PartitionShape(name, FINGERPRINT_WORDS + norms, padded, priority=-lane.number)

    transport = BytepsTransport(
        compressor.resolved,
        [shape(lane, *piece) for lane in lanes for piece in lane.pieces(settings.config)],
        worker=compressor.worker,
        recorder=recorder,
        deadline_s=settings.policy.deadline_s,
        zeros=kernels.host_zeros,
    )
    return [transport] * len(lanes)
