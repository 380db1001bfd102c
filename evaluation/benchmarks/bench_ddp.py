"""Communication time of a DDP step of 25 M parameters: THC against fp32 and torch's bf16 hook, on shaped links.

Four gloo ranks, each on a host of its own (a network namespace) behind a link shaped to a rate in both directions
(lab/thc_lab/shaped_network.py); thc-ps, for the network engine, is on a fifth host whose link is four times as fast.
Needs root. Schemes take turns step by step in the same processes. Communication time is the time of a backward with all
buckets averaged, less a backward without averaging (no_sync); both are the slowest rank's from a common barrier, and
medians over the repetitions.
"""

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from ratio import Row, at_least, lines_of
from section import publish, table
from shaped_ddp.ranks import ALONE, Ranks, cpu_ms, median_ms, run_ranks

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.launch import ParameterServer
from thc_lab.shaped_network import ShapedNetwork, inside, tcp_rate

RANK_PROGRAM = Path(__file__).with_name("bench_ddp_rank.py")
RANKS = 4
PARAMETERS = 24 * (1024 * 1024 + 1024)
RATE_S = 1.5
#: DDP's first broadcasts of six models take two minutes at 0.1 Gb/s.
DEADLINE_S = 600.0
#: A bucket's hook.
HOOK_TARGET_US = 200.0
#: Gb/s, scheme, peer: factor of speed.
TARGETS = {
    (1.0, "thc_5", "fp32"): 5.3,
    (1.0, "thc_5", "bf16"): 2.6,
    (1.0, "thc_4", "fp32"): 6.3,
    (1.0, "thc_4", "bf16"): 3.1,
    (10.0, "thc_5", "bf16"): 1.0,
    (10.0, "thc_4", "bf16"): 1.0,
}

#: Bytes a rank sends per parameter, scales and headers apart. fp32 and bf16: a ring passes everything on twice but for
#: its own share. THC: codes to the other ranks, averages of the own share to them; thc-ps takes codes and sends sums.
_OTHERS = (RANKS - 1) / RANKS
BYTES_PER_PARAMETER = {
    "fp32": 2 * _OTHERS * 4,
    "bf16": 2 * _OTHERS * 2,
    "power_sgd": 2 * _OTHERS * 4 * (2048 * 4 + 1024) / (1024 * 1024 + 1024),
    "thc_5": 2 * _OTHERS * 5 / 8,
    "thc_4": 2 * _OTHERS * 4 / 8,
    "thc_ps": 0.5,
}
TITLES = {
    "fp32": "DDP, fp32",
    "bf16": "DDP, bf16 hook",
    "power_sgd": "DDP, PowerSGD hook, rank 4",
    "thc_5": "THC among ranks, 5 bits each way",
    "thc_4": "THC among ranks, 4 bits each way",
    "thc_ps": "THC network, thc-ps",
}


@dataclass(frozen=True)
class Measurement:
    """One scheme at one rate. Times are milliseconds; encode, wait and decode are rank 0's in its last step."""

    scheme: str
    communication_ms: float
    cpu_ms: float
    """processor time of a rank, less its time in backward alone"""
    sent_mb: float
    expected_mb: float
    encode_ms: float | None
    wait_ms: float | None
    decode_ms: float | None
    hook_us: float | None


@dataclass(frozen=True)
class Run:
    """All schemes at one rate, and the measured rates of the links."""

    gbit: float
    tcp_gbit: float
    """payload of one TCP stream"""
    tcp_together_gbit: float
    """the same per stream, when every rank sends one to the next, as a ring does"""
    backward_ms: float
    measurements: list[Measurement]

    def communication_us(self, scheme: str) -> float:
        return next(m.communication_ms for m in self.measurements if m.scheme == scheme) * 1e3


def measure(network: ShapedNetwork, gbit: float, repeats: int) -> Run:
    """All schemes at one rate."""
    *hosts, server_host = network.hosts
    for host in hosts:
        host.shape(gbit * 1e9)
    server_host.shape(RANKS * gbit * 1e9)
    tcp = tcp_rate([(hosts[0], hosts[1])], RATE_S)
    together = tcp_rate(list(zip(hosts, hosts[1:] + hosts[:1], strict=True)), RATE_S)
    with tempfile.TemporaryDirectory() as folder:
        with inside(server_host.namespace):
            server = ParameterServer(["--idle-timeout", str(DEADLINE_S)], ip=server_host.ip)
        with server:
            options = ["--repeats", str(repeats), "--server", server.address]
            ranks = run_ranks(RANK_PROGRAM, hosts, Path(folder), options, deadline_s=DEADLINE_S)
    measurements = [measurement(ranks, scheme) for scheme in TITLES]
    return Run(gbit, tcp / 1e9, together / 1e9, median_ms(ranks, ALONE), measurements)


def measurement(ranks: Ranks, scheme: str) -> Measurement:
    """The ranks' results for a scheme."""
    stats = ranks[0][scheme]["stats"]
    return Measurement(
        scheme=scheme,
        communication_ms=median_ms(ranks, scheme) - median_ms(ranks, ALONE),
        cpu_ms=cpu_ms(ranks, scheme) - cpu_ms(ranks, ALONE),
        sent_mb=max(rank[scheme]["sent_bytes"] for rank in ranks) / 1e6,
        expected_mb=BYTES_PER_PARAMETER[scheme] * PARAMETERS / 1e6,
        encode_ms=stats.get("encode_ms"),
        wait_ms=stats.get("communicate_ms"),
        decode_ms=stats.get("decode_ms"),
        hook_us=max(rank[scheme]["hook_us"] for rank in ranks) if stats else None,
    )


def target_rows(run: Run) -> list[Row]:
    """The schemes that have targets at this rate."""
    rows = [
        at_least(
            f"{TITLES[scheme]}, {gbit:g} Gb/s",
            run.communication_us(scheme),
            TITLES[peer],
            run.communication_us(peer),
            factor,
        )
        for (gbit, scheme, peer), factor in TARGETS.items()
        if gbit == run.gbit
    ]
    measured = {m.scheme: m for m in run.measurements}
    own_us, bf16_us = (measured[scheme].cpu_ms * 1e3 for scheme in ("thc_5", "bf16"))
    what = f"{TITLES['thc_5']}, {run.gbit:g} Gb/s, processor"
    rows.append(at_least(what, own_us, TITLES["bf16"], bf16_us, 1.0))
    hook_us = measured["thc_5"].hook_us
    assert hook_us is not None
    target, met = f"<= {HOOK_TARGET_US:g} us", hook_us <= HOOK_TARGET_US
    what = f"thc_hook, per bucket, {run.gbit:g} Gb/s"
    rows.append(Row(what, hook_us, "the target", HOOK_TARGET_US, target, HOOK_TARGET_US / hook_us, met))
    return rows


def table_of(run: Run) -> list[list[str]]:
    """Header and lines of one rate's table, all cells as text."""
    cells = [
        [
            "",
            "communication",
            "fp32 / it",
            "bf16 / it",
            "processor",
            "sent per rank",
            "payload",
            "encode",
            "wait",
            "decode",
        ]
    ]
    fp32, bf16 = run.communication_us("fp32"), run.communication_us("bf16")
    for m in run.measurements:
        own = m.communication_ms * 1e3
        stages = ["" if ms is None else f"{ms:.0f} ms" for ms in (m.encode_ms, m.wait_ms, m.decode_ms)]
        cells.append(
            [TITLES[m.scheme], f"{m.communication_ms:.0f} ms", f"{fp32 / own:.2f}", f"{bf16 / own:.2f}",
             f"{m.cpu_ms:.0f} ms",
             f"{m.sent_mb:.1f} MB", f"{m.expected_mb:.1f} MB", *stages]
        )  # fmt: skip
    return cells


def heading(run: Run) -> str:
    """The measured network itself."""
    return (
        f"{run.gbit:g} Gb/s: one TCP stream carries {run.tcp_gbit:.2f} Gb/s, four at once {run.tcp_together_gbit:.2f} "
        f"Gb/s each; backward alone takes {run.backward_ms:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gbit", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    try:
        network = ShapedNetwork(RANKS + 1)
    except ConfigurationError as error:
        sys.exit(str(error))
    with network:
        runs = [measure(network, gbit, args.repeats) for gbit in args.gbit]
    lines = lines_of([row for run in runs for row in target_rows(run)])
    for run in runs:
        lines += [f"{heading(run)}.", "", *table(table_of(run))]
    publish(lines, args.json, runs=[asdict(run) for run in runs])


if __name__ == "__main__":
    main()
