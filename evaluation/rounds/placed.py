"""Measurements with servers placed in one way, and rounds computed from them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rounds.bed import Round, RoundBed
from rounds.parts import Link, Parts, computed_ms
from rounds.schemes import NAMES, PLACEMENTS

_WARM_UP = 2
#: The scheme that others are compared with.
FP32 = "fp32"


@dataclass(frozen=True)
class Placed:
    """Results for one placement of servers. rounds: by rate and scheme; tcp_gbit: of one stream, by rate."""

    name: str
    parts: Parts
    rounds: dict[float, dict[str, list[Round]]]
    tcp_gbit: dict[float, float]

    def ms(self, gbit: float, scheme: str, stage: str = "round") -> float:
        """Measured."""
        return statistics.median(one.ms[stage] for one in self.rounds[gbit][scheme])

    def server_ms(self, gbit: float, scheme: str, work: str = "cpu") -> float | None:
        """Measured, of all servers together (Round.server_ms); None: not known."""
        rounds = self.rounds[gbit][scheme]
        return statistics.median(one.server_ms[work] for one in rounds) if work in rounds[0].server_ms else None

    def link(self, scheme: str) -> Link:
        """Bytes of a round at the rate where the fewest were sent twice."""
        by_rate = [rounds[scheme] for rounds in self.rounds.values()]
        medians = [
            (statistics.median(one.bytes_in for one in rounds), statistics.median(one.bytes_out for one in rounds))
            for rounds in by_rate
        ]
        return Link(*min(medians, key=sum))

    def computed(self, scheme: str, gbit: float, *, at_workers: bool = True) -> float:
        servers = PLACEMENTS[self.name]
        return computed_ms(scheme, self.parts[scheme], self.link(scheme), servers, gbit, at_workers=at_workers)

    def either(self, scheme: str, gbit: float) -> float:
        """Measured if it was, else computed."""
        return self.ms(gbit, scheme) if gbit in self.rounds else self.computed(scheme, gbit)

    def against_fp32(self, scheme: str, gbit: float, *, at_workers: bool = True) -> str:
        """Computed, as the paper puts it: +19 %."""
        fp32 = self.computed(FP32, gbit, at_workers=at_workers)
        return f"{self.computed(scheme, gbit, at_workers=at_workers) / fp32 - 1:+.0%}".replace("%", " %")

    def faster_below(self, scheme: str, *, at_workers: bool) -> str:
        """Gb/s below which a round is faster than one of fp32, computed."""
        all_of, work = (
            [self.computed(name, gbit, at_workers=at_workers) for name in (scheme, FP32)] for gbit in (1.0, math.inf)
        )
        more_work = work[0] - work[1]
        less_network = (all_of[1] - work[1]) - (all_of[0] - work[0])  # at 1 Gb/s
        if less_network < 0.01 * all_of[1]:
            return "sends no less"
        return f"{less_network / more_work:.1f}" if more_work > 0 else "always"


def placed(name: str, parts: Parts, rates: Sequence[float], repeats: int) -> Placed:
    """Measure rounds, at so many Gb/s each. Schemes take turns round by round, in the same processes."""
    rounds: dict[float, dict[str, list[Round]]] = {}
    tcp_gbit = {}
    with RoundBed(name) as bed:
        for gbit in rates:
            tcp_gbit[gbit] = bed.shape(gbit)
            all_rounds = [{scheme: bed.round(scheme) for scheme in NAMES} for _ in range(repeats + _WARM_UP)]
            rounds[gbit] = {scheme: [turn[scheme] for turn in all_rounds[_WARM_UP:]] for scheme in NAMES}
    return Placed(name, parts, rounds, tcp_gbit)
