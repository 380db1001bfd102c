"""Claim: the round of a 4 MB partition, by stage, with servers that decompress and with one that only adds."""

import statistics
from typing import Any

from pages.claim import Check, Claim, Plot, Result, Series, Table
from rounds.bed import STAGES, Processes
from rounds.placed import FP32, Placed, placed
from rounds.schemes import NAMES, PLACEMENTS, THC

SHAPED_GBIT, COMPUTED_GBIT = (1.0, 10.0), (25.0, 40.0, 100.0)
FASTEST = COMPUTED_GBIT[-1]
PIECES, TOPK, DGC, TERNGRAD = (name for name in NAMES if name not in (FP32, THC))
SERVER_SHARE, AGREEMENT = 0.05, 0.25


def measure(quick: bool) -> Result:
    repeats = 4 if quick else 24
    with Processes() as processes:
        processes.start("parts 0")
        parts = {
            name: processes.ask(["parts 0"], "measure", servers=servers, repeats=repeats)[0]
            for name, servers in PLACEMENTS.items()
        }
    found = [placed(name, parts[name], SHAPED_GBIT, repeats) for name in PLACEMENTS]
    tables = [*(measured_table(one) for one in found), parts_table(found)]
    tables += [computed_table(one, at_workers=at_workers) for one in found for at_workers in (True, False)]
    tables.append(processor_table(found))
    return Result(checks(*found), tables, [plot(one) for one in found], data(found))


def checks(one: Placed, colocated: Placed) -> list[Check]:
    slower = [(TOPK, "slower than fp32 (paper: +19 %)", True), (DGC, "slower than fp32 (paper: +27 %)", True)]
    faster = [(TERNGRAD, "faster than fp32", False), (THC, "faster than fp32", False)]
    return [
        *(order_check(one, scheme, expected, is_slower) for scheme, expected, is_slower in slower + faster),
        order_check(colocated, TOPK, "faster than fp32 (paper: -20.6 %)", is_slower=False),
        order_check(colocated, THC, "faster than fp32", is_slower=False),
        measured_check([one, colocated]),
        server_check([one, colocated]),
        agreement_check(one),
    ]


def order_check(one: Placed, scheme: str, expected: str, is_slower: bool) -> Check:
    """Check the order at 100 Gb/s, computed."""
    is_met = (one.computed(scheme, FASTEST) > one.computed(FP32, FASTEST)) is is_slower
    all_parts, some = (one.against_fp32(scheme, FASTEST, at_workers=own) for own in (True, False))
    parts, fp32 = one.parts[scheme], one.computed(FP32, FASTEST)
    codec = f" (decoding {parts['decode_s']:.1f}, encoding {parts['encode_s']:.1f})" if scheme != THC else ""
    why = (
        f"a round of fp32 takes {fp32:.1f} ms only; a worker's core compresses and decompresses for "
        f"{parts['compress'] + parts['decompress']:.1f} ms, a server's core works for {parts['server']:.1f} ms{codec}. "
        f"The paper's workers have a GPU: without their work the difference is {some}"
    )
    return Check(
        f"{scheme} at {FASTEST:g} Gb/s, {one.name}, computed",
        expected,
        f"{all_parts} with all work on processor cores; {some} without the workers' work, as if a GPU took no time",
        is_met,
        "" if is_met else why,
    )


def measured_check(found: list[Placed]) -> Check:
    """THC, where links were shaped."""
    cases = [(one, gbit) for one in found for gbit in SHAPED_GBIT]
    got, slower = [], []
    for one, gbit in cases:
        fp32, pieces = (one.ms(gbit, scheme) / one.ms(gbit, THC) for scheme in (FP32, PIECES))
        got.append(f"{one.name}, {gbit:g} Gb/s: {fp32:.2f}x (fp32 in pieces: {pieces:.2f}x)")
        if fp32 <= 1:
            slower.append(
                f"{one.name}, {gbit:g} Gb/s: of {one.ms(gbit, THC):.1f} ms the last worker compresses for "
                f"{one.ms(gbit, THC, 'compress'):.1f}, and all processes share two cores with the network"
            )
    return Check("time of fp32 over THC, measured", "above 1x in all", "; ".join(got), not slower, "; ".join(slower))


def server_check(found: list[Placed]) -> Check:
    shares = {one.name: one.parts[THC]["server"] / one.parts[TOPK]["server"] for one in found}
    gbit, got = SHAPED_GBIT[-1], []
    for one in found:
        times = " of ".join(f"{one.parts[scheme]['server']:.2f}" for scheme in (THC, TOPK))
        whole = " of ".join(f"{one.server_ms(gbit, scheme):.1f}" for scheme in (THC, TOPK))
        got.append(f"{one.name}: {shares[one.name]:.1%}, {times} ms (whole processes, with packets: {whole} ms)")
    is_met = max(shares.values()) <= SERVER_SHARE
    return Check(
        "THC's work at a server (look up, add) against TopK's (decode, add, encode)",
        f"<= {SERVER_SHARE:.0%}".replace("%", " %"),
        "; ".join(got).replace("%", " %"),
        is_met,
        "" if is_met else "both are times of the same core: see the table of parts",
    )


def agreement_check(one: Placed) -> Check:
    """Rounds computed from parts against measured ones, at a rate at which the network takes most of the time."""
    gbit = SHAPED_GBIT[0]
    ratios = {scheme: one.computed(scheme, gbit) / one.ms(gbit, scheme) for scheme in NAMES}
    off = {scheme: ratio for scheme, ratio in ratios.items() if abs(ratio - 1) > AGREEMENT}
    why = "all processes share two cores. " + ". ".join(
        f"{scheme} took {one.ms(gbit, scheme):.0f} ms, with {one.ms(gbit, scheme, 'compress'):.1f} ms of compression, "
        f"which takes {one.parts[scheme]['compress']:.1f} ms alone on a core"
        for scheme in off
    )
    return Check(
        f"computed against measured at {gbit:g} Gb/s, {one.name}",
        f"within {AGREEMENT:.0%} for every scheme".replace("%", " %"),
        "; ".join(f"{scheme} {ratio:.2f}" for scheme, ratio in ratios.items()),
        not off,
        why if off else "",
    )


def measured_table(one: Placed) -> Table:
    cells = [["Gb/s", "scheme", *(f"{stage}, ms" for stage in STAGES), "round, ms", "quartiles", "of fp32's"]]
    cells[0].append("computed, ms")
    for gbit in SHAPED_GBIT:
        for scheme in NAMES:
            stages = [f"{one.ms(gbit, scheme, stage):.1f}" for stage in STAGES]
            if scheme == THC:
                stages[1:4] = [f"{stages[1]} for all three", "", ""]
            low, _, high = statistics.quantiles([r.ms["round"] for r in one.rounds[gbit][scheme]], n=4)
            whole = one.ms(gbit, scheme)
            last = [
                f"{low:.1f} to {high:.1f}",
                f"{whole / one.ms(gbit, FP32):.2f}",
                f"{one.computed(scheme, gbit):.1f}",
            ]
            cells.append([f"{gbit:g}", scheme, *stages, f"{whole:.1f}", *last])
    streams = ", ".join(f"{rate:.2f} of {gbit:g} Gb/s" for gbit, rate in one.tcp_gbit.items())
    count = len(one.rounds[SHAPED_GBIT[0]][FP32])
    return Table(
        f"Measured, {one.name}, medians of {count} rounds. A TCP stream gets {streams}. thc-ps answers packet by "
        "packet: its up, server and down are one time",
        cells,
    )


def parts_table(found: list[Placed]) -> Table:
    head = ["servers", "scheme", "compress, ms", "server: decode, ms", "add, ms", "encode, ms", "together, ms"]
    cells = [[*head, "decompress, ms", "into a server's host, MB", "out of a server's host, MB"]]
    for one in found:
        for scheme, parts in one.parts.items():
            link = one.link(scheme)
            work = [parts["compress"], *(parts.get(key, 0.0) for key in ("decode_s", "sum_s", "encode_s"))]
            numbers = [*work, parts["server"], parts["decompress"], link.bytes_in / 1e6, link.bytes_out / 1e6]
            cells.append([one.name, scheme, *(f"{number:.2f}" for number in numbers)])
    return Table(
        "Parts of a round alone on a core: processor time of one worker and one server, and bytes of frames. A "
        "computed round adds up these parts, with bytes at the rate of the link, no latency and no work for packets. "
        "With one server, fp32 in pieces and THC send up and down at the same time",
        cells,
    )


def computed_table(one: Placed, *, at_workers: bool) -> Table:
    cells = [["scheme", *(f"{gbit:g} Gb/s, ms" for gbit in COMPUTED_GBIT)]]
    cells[0] += [f"against fp32 at {FASTEST:g}", "faster than fp32 below, Gb/s"]
    for scheme in NAMES:
        times = [f"{one.computed(scheme, gbit, at_workers=at_workers):.2f}" for gbit in COMPUTED_GBIT]
        compared = [
            one.against_fp32(scheme, FASTEST, at_workers=at_workers),
            one.faster_below(scheme, at_workers=at_workers),
        ]
        cells.append([scheme, *times, *(compared if scheme != FP32 else ["", ""])])
    whose = "with all work on processor cores" if at_workers else "without the workers' work, as if a GPU took no time"
    return Table(f"Computed, {one.name}, {whose}", cells)


def processor_table(found: list[Placed]) -> Table:
    gbit, work = SHAPED_GBIT[-1], ("receive", "decode", "sum", "encode", "send", "keep", "cpu")
    cells = [["servers", "scheme", "receive, ms", "decode, ms", "add, ms", "encode, ms", "send, ms"]]
    cells[0] += ["keep residuals, ms", "whole process, ms"]
    for one in found:
        for scheme in NAMES:
            times = [one.server_ms(gbit, scheme, part) for part in work]
            cells.append([one.name, scheme, *("" if ms is None else f"{ms:.2f}" for ms in times)])
    return Table(
        f"Processor time of all server processes in a measured round at {gbit:g} Gb/s, kernel included. THC has thc-ps "
        "(C++ over UDP), all others the evaluation's server (Python over TCP)",
        cells,
    )


def plot(one: Placed) -> Plot:
    rates = [*SHAPED_GBIT, *COMPUTED_GBIT]
    return Plot(
        f"round_time_{one.name.replace(' ', '_')}",
        f"Round of 4 MB, {one.name}: measured up to 10 Gb/s, computed above",
        "Gb/s of every link",
        "ms",
        [Series(scheme, list(rates), [one.either(scheme, gbit) for gbit in rates]) for scheme in NAMES],
        y_axis="log",
        bars=True,
    )


def data(found: list[Placed]) -> Any:
    return {
        one.name: {
            "parts_ms": {scheme: {k: round(v, 3) for k, v in parts.items()} for scheme, parts in one.parts.items()},
            "server_ms": {scheme: one.server_ms(SHAPED_GBIT[-1], scheme) for scheme in NAMES},
            "tcp_gbit": {f"{gbit:g}": rate for gbit, rate in one.tcp_gbit.items()},
            "measured_ms": {
                f"{gbit:g}": {
                    scheme: {stage: round(one.ms(gbit, scheme, stage), 3) for stage in (*STAGES, "round")}
                    for scheme in NAMES
                }
                for gbit in SHAPED_GBIT
            },
        }
        for one in found
    }


CLAIM = Claim(
    name="round_time",
    title="Round of a 4 MB partition",
    figure="2a, 8",
    paper="at 100 Gb/s with one server, TopK 10 % takes 19.3 % longer than no compression, DGC 10 % 27.1 %. With four "
    "colocated servers TopK takes 20.6 % less. TernGrad and THC are faster",
    stand_in="The paper has 100 Gb/s links, RDMA and DPDK, and A100s that compress at the workers. Here rounds are "
    "measured in network namespaces shaped to 1 and 10 Gb/s, with all processes on two cores. Rounds at higher rates "
    "are computed from parts timed alone on a core. The decompressing server is a program of the evaluation, one "
    "thread of NumPy and PyTorch. Rounds without the workers' work stand in for a GPU.",
    minutes=6,
    measure=measure,
    root=True,
)
