"""Two levels of thc-ps: who is in which rack, and settings with which a rack's sums fit into a packet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from byteps_thc.config import ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.testbed.description_parts import HostDescription, Racks
from byteps_thc.wire.layout import VALUE_BITS

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
    racks = racks_of(testbed, aggregator)
    largest = max(rack.workers for rack in racks)
    resolved = config.resolve(testbed.workers)
    granularity, total = resolved.table.granularity, (1 << resolved.value_bits) - 1
    # To the root every rack is as large as the largest.
    limit = min(_LARGEST_SUM // largest, total // (largest * len(racks)))
    if granularity <= limit:
        return config
    what = f"{len(racks)} racks of up to {largest} workers: their sums of {_PARTIAL_SUM_BITS} bits, and the root's of "
    what += f"{resolved.value_bits}, hold granularity {limit}"
    smallest = (1 << config.bits) - 1
    if limit < smallest:
        raise ConfigurationError(
            f"{what}, and {config.bits}-bit codes have {smallest} or more: make racks of "
            f"{_LARGEST_SUM // smallest} workers at most, all of one size, or bits smaller"
        )
    if config.granularity != "auto":
        raise ConfigurationError(
            f"{what}, not {granularity}: use that or less, or racks that are smaller and of one size"
            + (", or value_bits 16" if resolved.value_bits < max(VALUE_BITS) else "")
        )
    return config.model_copy(update={"granularity": limit})
