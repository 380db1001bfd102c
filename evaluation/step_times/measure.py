"""Time of a DDP step by scheme and bandwidth: four gloo ranks, each on a host of its own behind a shaped link.

A thc-ps runs on each rank's host and on a fifth host, whose link is shaped as the others. Models of rank.py
have 11 M parameters. A step is forward, backward with all buckets averaged, and plain SGD; its time is the slowest
rank's from a common barrier, the median over the repetitions.
"""

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from averages.averagers import BF16, FP32, Scheme
from averages.power_sgd import PowerSgd
from averages.ranks import RankCodes
from baselines import TernGrad, TopK
from shaped_ddp.ranks import ALONE, median_ms, run_ranks

from byteps_thc._cli.launch import ParameterServer
from thc_lab.shaped_network import ShapedNetwork, inside

RANK_PROGRAM = Path(__file__).with_name("rank.py")
RANKS = 4
DEADLINE_S = 900.0
DEFAULT = "THC, default"
#: The compared schemes, here and for losses.
SCHEMES: dict[str, Scheme] = {
    "fp32": FP32,
    "bf16": BF16,
    "PowerSGD, rank 4": PowerSgd(rank=4),
    DEFAULT: RankCodes(),
    "THC, 3 + 3": RankCodes(3, 3),
    "THC, 2 + 2": RankCodes(2, 2),
    "TopK 10 %": TopK(ratio=0.1),
    "TernGrad": TernGrad(),
}
ONE_SERVER, COLOCATED = "THC, one server", "THC, four colocated servers"
#: THC's default for servers: the hosts that they run on, of RANKS + 1.
PLACEMENTS: dict[str, slice] = {ONE_SERVER: slice(RANKS, None), COLOCATED: slice(RANKS)}


@dataclass(frozen=True)
class StepTimes:
    """Times at one bandwidth. alone_ms: of a step without averaging. sent_mb: of a rank and step, by scheme."""

    gbit: float
    alone_ms: float
    step_ms: dict[str, float]
    sent_mb: dict[str, float]

    def ratio(self, scheme: str, to: str) -> float:
        """How many steps a scheme takes while another takes one."""
        return self.step_ms[to] / self.step_ms[scheme]


def measure(model: str, repeats: Mapping[float, int]) -> list[StepTimes]:
    """All schemes, in turn. model: of rank.MODELS. repeats: by bandwidth in Gb/s. SystemExit where a rank
    fails, ConfigurationError without root.
    """
    with ShapedNetwork(RANKS + 1) as network:
        return [_at(network, model, gbit, number) for gbit, number in repeats.items()]


def _at(network: ShapedNetwork, model: str, gbit: float, repeats: int) -> StepTimes:
    for host in network.hosts:
        host.shape(gbit * 1e9)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        addresses = []
        for host in network.hosts:
            with inside(host.namespace):
                server = ParameterServer(["--log-level", "warning"], ip=host.ip)
            addresses.append(servers.enter_context(server).address)
        options = ["--repeats", str(repeats), "--model", model, "--servers", *addresses]
        ranks = run_ranks(RANK_PROGRAM, network.hosts[:RANKS], Path(folder), options, deadline_s=DEADLINE_S)
    timed = (*SCHEMES, *PLACEMENTS)
    return StepTimes(
        gbit,
        median_ms(ranks, ALONE),
        {scheme: median_ms(ranks, scheme) for scheme in timed},
        {scheme: max(rank[scheme]["sent_bytes"] for rank in ranks) / 1e6 for scheme in timed},
    )
