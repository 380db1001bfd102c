"""THC over a mesh, exact within a node, against flat THC on all ranks: bytes and time of a DDP step of 25 M parameters.

Two hosts of the shaped network (lab/thc_lab/shaped_network.py) are nodes of two gloo ranks each: traffic within a node
stays in the host, and traffic between nodes passes a link shaped to a rate in both directions. Needs root. As in
bench_ddp.py, schemes take turns step by step in the same processes, and communication time is the time of a backward
with all buckets averaged less one without. The time on the slow link is the time of its busier node's frames at the
link's rate, counted where they are shaped.
"""

import argparse
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from bench_ddp import PARAMETERS, RATE_S
from ratio import Row, at_least, lines_of
from section import publish, table
from shaped_ddp.ranks import ALONE, Ranks, cpu_ms, median_ms, run_ranks

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.decoding.settings import DEFAULT_BITS
from thc_lab.shaped_network import ShapedNetwork, tcp_rate

RANK_PROGRAM = Path(__file__).with_name("bench_hierarchy_rank.py")
NODES, RANKS = 2, 4
#: at TARGET_GBIT
TARGET_GBIT, TARGET = 1.0, 1.8
TITLES = {
    "bf16": "DDP, bf16 hook",
    "flat": "THC, flat on 4 ranks",
    "mesh": "THC over the mesh, 2 x 2",
}
#: Payload bytes that a node sends per parameter; scales and small parameters apart. Flat: each of its two ranks sends
#: codes for half of the coordinates to the other node, and averages of its quarter to two ranks there. Over the mesh:
#: each sends codes for half of its half, and averages of a quarter to one rank.
BYTES_PER_PARAMETER = {
    "flat": 2 * (0.5 + 0.25 * 2) * DEFAULT_BITS / 8,
    "mesh": 2 * (0.25 + 0.25) * DEFAULT_BITS / 8,
}


def link_ms(ranks: Ranks, scheme: str, gbit: float) -> float:
    """Time of a step's frames on the slow link, for the busier node. Ranks of a node count the same frames."""
    return max(rank[scheme]["sent_bytes"] for rank in ranks) * 8 / gbit / 1e6


def communication_ms(ranks: Ranks, scheme: str) -> float:
    return median_ms(ranks, scheme) - median_ms(ranks, ALONE)


def rows_of(ranks: Ranks, gbit: float) -> list[Row]:
    """Rows of the link alone, and of all communication, computation included."""
    link, step = ({name: 1e3 * of(name) for name in ("flat", "mesh")} for of in (
        lambda name: link_ms(ranks, name, gbit), lambda name: communication_ms(ranks, name)
    ))  # fmt: skip
    what, peer = f"{TITLES['mesh']}, {gbit:g} Gb/s", TITLES["flat"]
    on_link = at_least(f"{what}: time on the slow link", link["mesh"], peer, link["flat"], TARGET)
    in_all = at_least(f"{what}: communication of a step", step["mesh"], peer, step["flat"], TARGET)
    return [row if gbit == TARGET_GBIT else replace(row, target="", met=None) for row in (on_link, in_all)]


def table_of(ranks: Ranks, gbit: float) -> list[list[str]]:
    """Header and lines, all cells as text."""
    cells = [
        ["", "communication", "on the slow link", "sent by a node", "payload", "processor of a rank", "encode", "wait",
         "decode"]
    ]  # fmt: skip
    for scheme, title in TITLES.items():
        sent_mb = max(rank[scheme]["sent_bytes"] for rank in ranks) / 1e6
        payload = BYTES_PER_PARAMETER.get(scheme)
        stats = ranks[0][scheme]["stats"]
        stages = [f"{stats[name]:.0f} ms" if stats else "" for name in ("encode_ms", "communicate_ms", "decode_ms")]
        cells.append(
            [title, f"{communication_ms(ranks, scheme):.0f} ms", f"{link_ms(ranks, scheme, gbit):.0f} ms",
             f"{sent_mb:.1f} MB", "" if payload is None else f"{payload * PARAMETERS / 1e6:.1f} MB",
             f"{cpu_ms(ranks, scheme) - cpu_ms(ranks, ALONE):.0f} ms", *stages]
        )  # fmt: skip
    return cells


def measure(network: ShapedNetwork, gbit: float, repeats: int) -> tuple[float, Ranks]:
    """Bits per second of a TCP stream between the nodes, and the ranks' measurements at that rate."""
    for host in network.hosts:
        host.shape(gbit * 1e9)
    tcp = tcp_rate([(network.hosts[0], network.hosts[1])], RATE_S)
    hosts = [network.hosts[rank * NODES // RANKS] for rank in range(RANKS)]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--repeats", str(repeats), "--nodes", str(NODES)]
        return tcp, run_ranks(RANK_PROGRAM, hosts, Path(folder), options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gbit", type=float, nargs="+", default=[TARGET_GBIT, 0.25])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    try:
        network = ShapedNetwork(NODES)
    except ConfigurationError as error:
        sys.exit(str(error))
    rows: list[Row] = []
    tables: list[str] = []
    with network:
        for gbit in args.gbit:
            tcp, ranks = measure(network, gbit, args.repeats)
            heading = (
                f"{gbit:g} Gb/s between the nodes: one TCP stream carries {tcp / 1e9:.2f} Gb/s; backward alone takes "
                f"{median_ms(ranks, ALONE):.0f} ms"
            )
            rows += rows_of(ranks, gbit)
            tables += [f"{heading}.", "", *table(table_of(ranks, gbit))]
    publish([*lines_of(rows), *tables], args.json, rows=[asdict(row) for row in rows])


if __name__ == "__main__":
    main()
