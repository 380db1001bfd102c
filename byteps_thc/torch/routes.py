"""The two ways of the codes: a transport for every lane."""

from __future__ import annotations

from collections.abc import Sequence

from byteps_thc.compressor import Compressor
from byteps_thc.engines.network import NetworkTransport
from byteps_thc.engines.transport import Transport
from byteps_thc.statistics import StatsRecorder
from byteps_thc.torch.lanes import Lane
from byteps_thc.torch.settings import ThcCompression


def open_transports(
    settings: ThcCompression, lanes: Sequence[Lane], worker: int, workers: int, recorder: StatsRecorder
) -> list[Transport]:
    """Connect all lanes; on all workers, with the same lanes.

    network: raises what Session raises. servers: what ServersExchange raises.
    """
    if settings.route == "servers":
        return _over_byteps_servers(settings, lanes, worker, workers, recorder)
    return _over_the_network(settings, lanes, worker, workers, recorder)


def _over_the_network(
    settings: ThcCompression, lanes: Sequence[Lane], worker: int, workers: int, recorder: StatsRecorder
) -> list[Transport]:
    transports: list[Transport] = []
    try:
        for lane in lanes:
            network = settings.network_of_lane(lane.number)
            session = network.open_session(settings.config, worker, workers, settings.policy.deadline_s)
            transports.append(NetworkTransport(session, recorder))
    except BaseException:
        for transport in transports:
            transport.close()
        raise
    return transports


def _over_byteps_servers(
    settings: ThcCompression, lanes: Sequence[Lane], worker: int, workers: int, recorder: StatsRecorder
) -> list[Transport]:
    # The module needs BytePS's servers to run our compressor; the network route does not.
    from byteps_thc.torch.servers_exchange import PartitionShape, ServersExchange
    from byteps_thc.torch.servers_transport import ServersTransport

    compressor = Compressor(settings.config, workers=workers, worker=worker)
    shapes = {
        lane.number: [
            PartitionShape(name, *compressor.layout(coordinates)) for name, coordinates in lane.pieces(settings.config)
        ]
        for lane in lanes
    }
    exchange = ServersExchange(
        compressor.resolved,
        [shape for own in shapes.values() for shape in own],
        worker=worker,
        deadline_s=settings.policy.deadline_s,
    )
    transports: list[Transport] = []
    first = 0
    for lane, own in shapes.items():
        transports.append(
            ServersTransport(
                exchange,
                own,
                first=first,
                workers=workers,
                code_bits=settings.config.bits,
                priority=-lane,
                recorder=recorder,
            )
        )
        first += len(own)
    return transports
