"""Results of thc-ps at an interface that is slower than the server: none is lost."""

import socket
from collections.abc import Iterator

import pytest
from network_or_skip import network_or_skip
from raw_worker import Worker

from byteps_thc._cli.launch import ParameterServer
from thc_lab.namespaces import inside
from thc_lab.shaped_network import ShapedNetwork
from thc_switch.wire import MessageType

CODES_PER_PACKET = 1024
#: Slots at a time: their results are ten times the size of the queue.
SLOTS = 448
QUEUE_BYTES = 100_000
_SO_RCVBUFFORCE = 33


@pytest.fixture
def network() -> Iterator[ShapedNetwork]:
    with network_or_skip(lambda: ShapedNetwork(2)) as network:
        network.hosts[0].shape(100e6, QUEUE_BYTES)
        yield network


@pytest.fixture
def workers(network: ShapedNetwork) -> Iterator[list[Worker]]:
    """Two workers on one host, and thc-ps on another."""
    with ParameterServer(prefix=network.hosts[0].command(), ip=network.hosts[0].ip) as server:
        with inside(network.hosts[1].namespace):
            workers = [
                Worker(server.address, number, 2, codes_per_packet=CODES_PER_PACKET, source_ip=network.hosts[1].ip)
                for number in (0, 1)
            ]
        for worker in workers:
            worker.socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
            worker.join()
        yield workers
        for worker in workers:
            worker.close()


def test_no_result_is_lost_at_the_interface_of_the_server(network: ShapedNetwork, workers: list[Worker]) -> None:
    before = network.hosts[0].sent()
    first = workers[0].shape.norm_slots
    for worker in workers:
        for slot in range(first, first + SLOTS):
            worker.send_codes([1] * CODES_PER_PACKET, slot=slot)
    for worker in workers:
        replies = [worker.receive() for _ in range(SLOTS)]
        assert sorted(reply.header.slot for reply in replies) == list(range(first, first + SLOTS))
        assert {MessageType(reply.header.message_type) for reply in replies} == {MessageType.AGGREGATE}
    sent = network.hosts[0].sent() - before
    assert sent.packets >= 2 * SLOTS
    # A server that waits for the processor sends larger bursts then. It repeats the frames that had no room.
    assert sent.drops < sent.packets / 50
