"""Replica: every worker's copy of a result gets its own addresses, in egress."""

from __future__ import annotations

from collections.abc import Iterator

from thc_switch.controls.base import Control, ip_number, mac_number
from thc_switch.description import WorkerDescription
from thc_switch.plan import MulticastGroup, TableEntry
from thc_switch.upstream_description import UpstreamDescription


class Replica(Control):
    """One multicast group per job and one towards its root, one replication id per worker and root."""

    INSTANCE = "ThcEgress.replica"
    TABLES = ("replica",)

    def entries(self) -> Iterator[TableEntry]:
        """Every worker's MAC and IP address, UDP port and id; a root's, to whom the leaf is worker `rack`."""
        for allocation in self.allocations:
            job = allocation.job
            for number, worker in job.numbered_workers.items():
                yield self._entry(allocation.replication_id(number), worker, number)
            if job.upstream is not None:
                yield self._entry(allocation.root_replication_id, job.upstream, job.upstream.rack)

    def _entry(self, rid: int, to: WorkerDescription | UpstreamDescription, number: int) -> TableEntry:
        addresses = {"mac": mac_number(to.mac), "ip": ip_number(to.ip), "port": to.udp_port}
        return self.entry("replica", {"egress_rid": rid}, "to_worker", **addresses, worker_id=number)

    def groups(self) -> Iterator[MulticastGroup]:
        """The workers of each job, and the root of a leaf's."""
        for allocation in self.allocations:
            replicas = (
                (worker.port, allocation.replication_id(number))
                for number, worker in allocation.job.numbered_workers.items()
            )
            yield MulticastGroup(allocation.multicast_group, tuple(replicas))
            if (upstream := allocation.job.upstream) is not None:
                yield MulticastGroup(allocation.root_group, ((upstream.port, allocation.root_replication_id),))
