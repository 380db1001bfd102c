"""Links of the shaped network carry what they should, no more and not much less."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from shaped_network import MTU_BYTES, ShapedNetwork, tcp_rate

from byteps_thc.errors import ConfigurationError

BITS_PER_S = 200e6


@pytest.fixture(scope="module")
def network() -> Iterator[ShapedNetwork]:
    try:
        network = ShapedNetwork(3)
    except ConfigurationError as error:
        pytest.skip(str(error))
    with network:
        for host in network.hosts:
            host.shape(BITS_PER_S)
        yield network


def test_two_streams_to_one_host_share_its_link(network: ShapedNetwork) -> None:
    a, b, c = network.hosts
    each = tcp_rate([(a, c), (b, c)], 1.0)
    assert 0.4 * BITS_PER_S < each <= 0.5 * BITS_PER_S


def test_frames_are_counted_one_by_one(network: ShapedNetwork) -> None:
    a, b, _ = network.hosts
    before, arrived = a.sent(), b.received()
    rate = tcp_rate([(a, b)], 0.5)
    sent, arrived = a.sent() - before, b.received() - arrived
    assert 0.8 * BITS_PER_S < rate < BITS_PER_S
    assert sent.bytes / sent.packets > 0.9 * MTU_BYTES
    assert sent.bytes / sent.packets <= MTU_BYTES + 14
    assert arrived.bytes > 0.9 * sent.bytes
