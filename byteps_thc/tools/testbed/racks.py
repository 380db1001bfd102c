"""Two levels of thc-ps: who is in which rack, and settings with which a rack's sums fit into a packet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from byteps_thc.config import ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.testbed.description_parts import HostDescription, Racks

if TYPE_CHECKING:
    from byteps_thc.tools.testbed.description import Testbed

#: A leaf sends sums of so many bits to the root, as a worker sends codes.
_PARTIAL_SUM_BITS = 8
_LARGEST_SUM = (1 << _PARTIAL_SUM_BITS) - 1


@dataclass(frozen=True)
class PlacedRack:
    """A rack with its workers, as they are numbered in the job."""

    number: int
    leaf: HostDescription
    first_worker: int
    workers: int

    @property
    def range(self) -> str:
        """FIRST-LAST, as --racks of thc-ps takes it."""
        return f"{self.first_worker}-{self.first_worker + self.workers - 1}"

    def has(self, worker: int) -> bool:
        """Whether the worker of that number is in it."""
        return self.first_worker <= worker < self.first_worker + self.workers


def racks_of(testbed: Testbed, aggregator: Racks) -> tuple[PlacedRack, ...]:
    """All racks, in their order."""
    placed: list[PlacedRack] = []
    first = 0
    for number, rack in enumerate(aggregator.racks):
        workers = sum(testbed.host(name).workers for name in rack.hosts)
        placed.append(PlacedRack(number, testbed.host(rack.leaf), first, workers))
        first += workers
    return tuple(placed)


def config_of(testbed: Testbed) -> ThcConfig:
    """The job's settings; with racks, the largest granularity with which a rack's sums fit, where a larger was chosen.

    ConfigurationError, with what to change, when there is none.
    """
    config, aggregator = testbed.job.thc, testbed.aggregator
    if not isinstance(aggregator, Racks):
        return config
    largest = max(rack.workers for rack in racks_of(testbed, aggregator))
    limit = _LARGEST_SUM // largest
    granularity = config.resolve(testbed.workers).table.granularity
    if granularity <= limit:
        return config
    smallest = (1 << config.bits) - 1
    if limit < smallest:
        raise ConfigurationError(
            f"{config.bits}-bit codes have granularity {smallest} or more, and with {largest} workers a rack's sums of "
            f"{_PARTIAL_SUM_BITS} bits hold {limit}: make racks of {_LARGEST_SUM // smallest} workers at most, or bits "
            "smaller"
        )
    if config.granularity != "auto":
        raise ConfigurationError(
            f"granularity {granularity} * {largest} workers of a rack do not fit its sums of {_PARTIAL_SUM_BITS} bits: "
            f"use granularity {limit} or less, or smaller racks"
        )
    return config.model_copy(update={"granularity": limit})
