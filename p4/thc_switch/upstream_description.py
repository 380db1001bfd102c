"""The rack of a leaf switch: its workers among the job's, and the root above it."""

import itertools
from functools import cached_property
from ipaddress import IPv4Address
from typing import Self

from pydantic import Field, model_validator

from byteps_thc._base.wire.layout import MAX_WORKERS, UDP_PORT
from byteps_thc._scheme.adding.tables import LookupTable
from thc_switch import limits
from thc_switch.description_types import Description, MacAddress, PortNumber, UdpPort

#: Bits of a leaf's codes to its root: its rack's sums.
CODE_BITS = 8


class UpstreamDescription(Description):
    """The thc-ps that adds the racks' sums, and this switch's rack."""

    ip: IPv4Address
    """of the root"""
    udp_port: UdpPort = UDP_PORT
    mac: MacAddress
    """of the root, or of the next hop towards it"""
    port: PortNumber
    """switch port it is reached at"""
    racks: str
    """the workers of every rack, first and last, as "0-3,4-7": the same at all leaves of a job"""
    rack: int = Field(ge=0)
    """this switch's, from 0"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.ranges) < 2:
            raise ValueError(
                f"racks is {self.racks!r}, one rack: omit upstream, the switch of one rack sums for all workers"
            )
        if self.rack >= len(self.ranges):
            raise ValueError(f"rack is {self.rack}; racks names {len(self.ranges)}, numbered from 0")
        return self

    @cached_property
    def ranges(self) -> tuple[range, ...]:
        """The workers of every rack; ValueError if `racks` does not name all workers from 0 in order."""
        found = []
        for text in self.racks.split(","):
            first, dash, last = (part.strip() for part in text.partition("-"))
            if not first.isdecimal() or not (last.isdecimal() if dash else True):
                raise ValueError(f"racks has {text.strip()!r}; write first and last worker of each rack, as 0-3,4-7")
            found.append(range(int(first), int(last or first) + 1))
        for before, rack in itertools.pairwise([range(0), *found]):
            if not rack or rack.start != before.stop:
                raise ValueError(
                    f"racks has {rack.start}-{rack.stop - 1} where worker {before.stop} comes next: racks name all "
                    "workers from 0 without gaps"
                )
        if found[-1].stop > limits.MAX_WORKERS:
            raise ValueError(
                f"racks names {found[-1].stop} workers; a job with a switch in it has up to {limits.MAX_WORKERS}"
                f" (thc-ps alone: {MAX_WORKERS})"
            )
        return tuple(found)

    @property
    def workers(self) -> range:
        """Numbers of the workers of this rack."""
        return self.ranges[self.rack]

    @property
    def num_workers(self) -> int:
        """Workers of all racks."""
        return self.ranges[-1].stop

    @property
    def other_racks(self) -> int:
        """Bitmap of the workers of the other racks."""
        return sum(1 << worker for worker in range(self.num_workers) if worker not in self.workers)

    def granularity(self, workers_granularity: int) -> int:
        """Return the largest sum of a rack: the same at all leaves."""
        return workers_granularity * max(len(workers) for workers in self.ranges)

    def table(self, workers_granularity: int) -> LookupTable:
        """Return the table of the job at the root, where a code is a sum: T[z] = min(z, G)."""
        granularity = self.granularity(workers_granularity)
        values = tuple(min(code, granularity) for code in range(1 << CODE_BITS))
        return LookupTable(CODE_BITS, granularity, p=0.5, values=values, cost=0.0)  # p and cost do not travel

    def check_sums(self, workers_granularity: int) -> None:
        """Raise ValueError if the sums of this many racks, of the largest size, do not fit the root's."""
        granularity, largest_sum = self.granularity(workers_granularity), (1 << limits.VALUE_BITS) - 1
        if granularity * len(self.ranges) > largest_sum:
            fitting = largest_sum // (granularity // workers_granularity * len(self.ranges))
            raise ValueError(
                f"granularity {workers_granularity} * {granularity // workers_granularity} workers of the largest rack "
                f"* {len(self.ranges)} racks = {granularity * len(self.ranges)} does not fit the root's "
                f"{limits.VALUE_BITS}-bit sums (at most {largest_sum}): use thc.granularity {fitting} or less, or "
                "racks of the same size"
            )
