"""What thc-ps sends through an interface that takes less than it has to send: nothing is lost there."""

from __future__ import annotations

import re
import socket
import struct
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest
from raw_worker import Worker
from shaped_network import INTERFACE, Host, ShapedNetwork

from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.launch import ParameterServer
from byteps_thc.tools.testbed.hosts.namespaces import inside
from byteps_thc.wire.layout import Flag, MessageType

CODES_PER_PACKET = 1024
#: so many at a time: twice that many results are 11 times the queue
SLOTS = 512
_ECN_CONGESTION = 3


@pytest.fixture(scope="module")
def network() -> Iterator[ShapedNetwork]:
    try:
        network = ShapedNetwork(2)
    except ConfigurationError as error:
        pytest.skip(str(error))
    with network:
        yield network


@pytest.fixture
def workers(network: ShapedNetwork) -> Iterator[list[Worker]]:
    """Two workers on one host, and thc-ps on another."""
    on, of = network.hosts
    with ParameterServer(prefix=on.command(), ip=on.ip) as server, inside(of.namespace):
        workers = [
            Worker(server.address, number, 2, codes_per_packet=CODES_PER_PACKET, source_ip=of.ip) for number in (0, 1)
        ]
        for worker in workers:
            worker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE, 64 << 20)
            worker.join()
        yield workers
        for worker in workers:
            worker.close()
