"""Backward of an FSDP2 model of 25 M parameters: THC's reduce-scatter against fp32's and bf16's, and against itself if
backward waits for every group's average.

Two gloo ranks, each on a host of its own (a network namespace) behind a link shaped to a rate in both directions
(lab/thc_lab/shaped_network.py). Needs root. Schemes take turns step by step in the same processes. Parameters stay
gathered between forward and backward, so that backward only reduces. Times are the slowest rank's from a common
barrier, and medians over the repetitions.

--whole-step DTYPE times forward, backward and SGD instead. Parameters are gathered in that dtype for forward and again
for backward, which is FSDP2's default. fp32, bf16 and THC differ in the reduce-scatter only. "both" compresses gathers,
too.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from ratio import Row, at_least, report
from shaped_ddp.ranks import run_ranks

from byteps_thc._base.errors import ConfigurationError
from thc_lab.shaped_network import ShapedNetwork

RANK_PROGRAM = Path(__file__).with_name("bench_fsdp_rank.py")
RANKS = 2
#: A step of fp32 takes 15 to 25 s at 0.1 Gb/s.
DEADLINE_S = 900.0
BACKWARD_PEERS = {
    "waits": "THC, waited for group by group",
    "fp32": "FSDP2, fp32",
    "bf16": "FSDP2, reduce_dtype bf16",
    "alone": "backward alone",
}
STEP_PEERS = {"fp32": "reduce_dtype fp32", "bf16": "reduce_dtype bf16"}
#: Least factor over bf16, by bits of gathered parameters.
BOTH = {8: 2.3, 6: 2.8}


def backward_ms(network: ShapedNetwork, folder: Path, options: list[str]) -> dict[str, float]:
    """Return the milliseconds of a backward pass of each scheme. SystemExit when a rank fails."""
    ranks = run_ranks(RANK_PROGRAM, network.hosts, folder, options, deadline_s=DEADLINE_S)
    return {
        name: statistics.median(max(seconds) for seconds in zip(*(rank[name] for rank in ranks), strict=True)) * 1e3
        for name in ranks[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gbit", type=float, nargs="+", default=[1.0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rows", type=int, default=64, help="of a batch: what backward computes")
    parser.add_argument("--whole-step", metavar="DTYPE", choices=("float32", "bfloat16"), help="of gathered parameters")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    try:
        network = ShapedNetwork(RANKS)
    except ConfigurationError as error:
        sys.exit(str(error))
    rows: list[Row] = []
    with network:
        for gbit in args.gbit:
            for host in network.hosts:
                host.shape(gbit * 1e9)
            with tempfile.TemporaryDirectory() as folder:
                options = ["--repeats", str(args.repeats), "--rows", str(args.rows)]
                options += ["--whole-step", args.whole_step] if args.whole_step else []
                times_ms = backward_ms(network, Path(folder), options)
            timed = f"step with THC, {args.whole_step} gathers" if args.whole_step else "backward with THC"
            what, own_us = f"FSDP2 {timed}, {gbit:g} Gb/s", times_ms["thc"] * 1e3
            for scheme, name in (STEP_PEERS if args.whole_step else BACKWARD_PEERS).items():
                peer_us = times_ms[scheme] * 1e3
                rows.append(Row(what, own_us, name, peer_us, "", peer_us / own_us, None))
            for bits, factor in BOTH.items() if args.whole_step else ():
                what = f"FSDP2 step with THC, {bits}-bit gathers of {args.whole_step}, {gbit:g} Gb/s"
                own_us, peer_us = (times_ms[scheme] * 1e3 for scheme in (f"both {bits}", "bf16"))
                rows.append(at_least(what, own_us, STEP_PEERS["bf16"], peer_us, factor))
    report(rows, args.json)


if __name__ == "__main__":
    main()
