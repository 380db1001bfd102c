"""Replica: every worker's copy of a result gets its own addresses, in egress."""

from __future__ import annotations

from collections.abc import Iterator

from thc_switch.controls.base import Control, ip_number, mac_number
from thc_switch.plan import MulticastGroup, TableEntry


class Replica(Control):
    """One multicast group per job, one replication id per worker."""

    INSTANCE = "ThcEgress.replica"
    TABLES = ("replica",)

    def entries(self) -> Iterator[TableEntry]:
        """Every worker's MAC and IP address, UDP port and id."""
        for allocation in self.allocations:
            for number, worker in enumerate(allocation.job.workers):
                yield self.entry(
                    "replica",
                    {"egress_rid": allocation.replication_id(number)},
                    "to_worker",
                    mac=mac_number(worker.mac),
                    ip=ip_number(worker.ip),
                    port=worker.udp_port,
                    worker_id=number,
                )

    def groups(self) -> Iterator[MulticastGroup]:
        """The workers of each job."""
        for allocation in self.allocations:
            replicas = (
                (worker.port, allocation.replication_id(number)) for number, worker in enumerate(allocation.job.workers)
            )
            yield MulticastGroup(allocation.multicast_group, tuple(replicas))
