"""Bytes on the slow link with two levels: two hosts of two gloo ranks each, and a cable between their namespaces."""

from pathlib import Path

import torch
from network_or_skip import network_or_skip

from thc_lab.ranks import run_ranks
from thc_lab.shaped_network import INTERFACE, ShapedNetwork

PROGRAM = Path(__file__).with_name("node_links_rank.py")
PARAMETERS = 1024 * 512
FRAMES = 1.1  # headers, acknowledgements, norms and questions among ranks, per byte of payload
RATE_BPS = 1e9
#: Bytes per parameter that leave a node of two ranks: 4.13 bits each way, in two levels of half of the coordinates; a
#: ring of four ranks, twice. evaluation/link_bytes.py has them for all nodes.
FLAT, TWO_LEVELS, BF16 = 8.27 / 8, 8.27 / 16, 2 * 3 / 4 * 2


def test_two_levels_send_what_is_computed_and_less_than_bf16(tmp_path: Path) -> None:
    with network_or_skip(lambda: ShapedNetwork(2)) as network:
        for host in network.hosts:
            host.shape(RATE_BPS)  # which counts frames, too
        namespaces = [network.hosts[rank // 2].namespace for rank in range(4)]
        environment = {"GLOO_SOCKET_IFNAME": INTERFACE}
        settings = {"namespaces": namespaces}
        reports = run_ranks(PROGRAM, 4, tmp_path / "ranks", settings=settings, environment=environment, timeout_s=200)
    for report in reports:
        assert report["levels"]["said"].startswith("ThcState(2 nodes of 2 ranks, ")
        assert report["flat"]["said"].startswith("ThcState(flat, 4 ranks, ")
        assert report["reducer"]["said"] == "ThcReducer(2 nodes of 2 ranks, closed)"
        for scheme in ("levels", "reducer"):
            assert torch.equal(report[scheme]["average"], reports[0][scheme]["average"])
        for scheme, payload in (("levels", TWO_LEVELS), ("reducer", TWO_LEVELS), ("flat", FLAT), ("bf16", BF16)):
            assert payload < report[scheme]["sent"] / PARAMETERS < FRAMES * payload, scheme
        assert report["levels"]["sent"] < report["flat"]["sent"] / 1.8
        assert report["levels"]["sent"] < report["bf16"]["sent"] / 4
