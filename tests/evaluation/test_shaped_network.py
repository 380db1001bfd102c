"""Links of the shaped network carry their rate, no more and not much less."""

import time
from collections.abc import Iterator

import pytest
from network_or_skip import network_or_skip

from thc_lab.shaped_network import MTU_BYTES, ShapedNetwork, tcp_rate

BITS_PER_S = 20e6  # so slow that the kernel's buffers keep a link busy while the machine keeps its processes waiting


@pytest.fixture(scope="module")
def network() -> Iterator[ShapedNetwork]:
    with network_or_skip(lambda: ShapedNetwork(3)) as network:
        for host in network.hosts:
            host.shape(BITS_PER_S)
        yield network


def test_two_streams_to_one_host_share_its_link(network: ShapedNetwork) -> None:
    a, b, c = network.hosts
    before, begin = c.received(), time.perf_counter()
    each = tcp_rate([(a, c), (b, c)], 1.0)
    elapsed_s = time.perf_counter() - begin
    assert each > 0.4 * BITS_PER_S
    # Not of `each`: one stream ends before the other, which then has the link for itself.
    assert (c.received() - before).bytes * 8 < 1.05 * BITS_PER_S * elapsed_s


def test_frames_are_counted_one_by_one(network: ShapedNetwork) -> None:
    a, b, _ = network.hosts
    before, arrived = a.sent(), b.received()
    rate = tcp_rate([(a, b)], 0.5)
    sent, arrived = a.sent() - before, b.received() - arrived
    assert 0.8 * BITS_PER_S < rate < BITS_PER_S
    assert sent.bytes / sent.packets > 0.9 * MTU_BYTES
    assert sent.bytes / sent.packets <= MTU_BYTES + 14
    assert arrived.bytes > 0.9 * sent.bytes
