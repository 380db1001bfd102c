"""What the doctor says of a way: measured on links of a known rate, and what follows for averages."""

from __future__ import annotations

import re

from network_or_skip import network_or_skip

from byteps_thc._cli.doctor.finding import Finding
from byteps_thc._cli.doctor.server import check_servers
from byteps_thc._cli.doctor.visit import Visit
from byteps_thc._cli.doctor.way import Way
from byteps_thc._cli.launch import ParameterServer
from thc_lab.namespaces import inside
from thc_lab.shaped_network import Host, ShapedNetwork


def test_averages_over_such_links() -> None:
    """100 Mb/s: 400 MB of sums leave one server. A rank receives 3/4 of 4 and 8 bits a parameter, or of 32 in bf16."""
    said = Way(50e6, 100e6, 0.3e-3, 0.0123, 1056).describe()
    assert said == (
        "100 Mb/s down with 50 Mb/s up, 300 us of round trip, 1.2% of packets repeated, datagrams of 1056 bytes. "
        "If every host's link carries that, an average of 100 M parameters of 4 workers takes about 32 s with one "
        "server, 9 s with a server on each worker's host, 24 s in bf16 by ring all-reduce"
    )


def rate_bps(finding: Finding) -> float:
    found = re.match(r"([\d.]+) Mb/s down", finding.meaning)
    assert found, finding
    return float(found[1]) * 1e6


def test_rates_of_links() -> None:
    """Two servers, whose links carry 20 and 5 Mb/s: rates that any processor sends at, if it is not kept busy."""
    with network_or_skip(lambda: ShapedNetwork(3, "way")) as network:
        worker, *hosts = network.hosts
        for host, rate in zip(hosts, (20e6, 5e6), strict=True):
            host.shape(rate)

        def start(host: Host) -> ParameterServer:
            with inside(host.namespace):
                return ParameterServer(ip=host.ip)

        with start(hosts[0]) as fast, start(hosts[1]) as slow, inside(worker.namespace):
            servers = [
                Visit((server.address.split(":")[0], int(server.address.split(":")[1]))) for server in (fast, slow)
            ]
            _, _, fast_way, _, _, slow_way = check_servers(servers)
    assert 0.4 * 20e6 < rate_bps(fast_way) < 20e6
    assert 0.4 * 5e6 < rate_bps(slow_way) < 5e6
