"""A demo's pace, measured in its first steps, and the steps that fit into the given time."""

import statistics
import time
from dataclasses import dataclass, replace
from itertools import pairwise

from thc_lab.demo.launcher import train
from thc_lab.demo.network import Network
from thc_lab.demo.settings import DemoSettings, Progress, Scheme

#: Steps of each run that is measured. The first is counted as part of the start.
MEASURED_STEPS = 3


@dataclass(frozen=True)
class Pace:
    """Seconds of a step, without compression and through the aggregators, and of all that is not a step."""

    uncompressed_s: float
    compressed_s: float
    rest_s: float

    @property
    def steps_per_s(self) -> float:
        """Through the aggregators."""
        return 1 / self.compressed_s

    def steps_within(self, seconds: float) -> int:
        """Steps of each of the three runs that take no longer than this; 0: none."""
        return max(0, int((seconds - self.rest_s) / (self.uncompressed_s + 2 * self.compressed_s)))


def measure(settings: DemoSettings, network: Network) -> Pace:
    """Train the first steps without compression and with THC, which stands for both compressed runs."""
    times_s: dict[Scheme, list[float]] = {Scheme.FP32: [], Scheme.THC: []}

    def take(progress: Progress) -> None:
        times_s[progress.scheme].append(time.monotonic())

    start_s = time.monotonic()
    train(replace(settings, steps=MEASURED_STEPS, schemes=tuple(times_s)), network, take)
    whole_s = time.monotonic() - start_s
    steps_s = {scheme: [after - before for before, after in pairwise(times)] for scheme, times in times_s.items()}
    medians_s = {scheme: statistics.median(seconds) for scheme, seconds in steps_s.items()}
    rest_s = whole_s - sum(map(sum, steps_s.values()))
    return Pace(medians_s[Scheme.FP32], medians_s[Scheme.THC], rest_s)
