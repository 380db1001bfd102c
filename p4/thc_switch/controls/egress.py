"""The controls of egress."""

from collections.abc import Iterator

from thc_switch.allocation import JobAllocation, allocate
from thc_switch.controls.base import Contents, Control, mac_number
from thc_switch.controls.job_check import FROM_ROOT
from thc_switch.description import Deployment, Peer
from thc_switch.plan import MulticastGroup, TableEntry
from thc_switch.wire import MessageType

#: Message types of a rack's results at the root.
_UP = {MessageType.AGGREGATE: MessageType.CODES, MessageType.MAX_NORM: MessageType.NORM}


class Leaf(Control):
    """Headers of packets from a rack to its root, and back.

    `leaf` is empty until the agent opens a leaf's job, because the entries have both epochs.
    """

    INSTANCE = "ThcEgress.leaf"
    TABLES = ("leaf",)

    @classmethod
    def open_entries(cls, allocation: JobAllocation, epoch: int, root_epoch: int) -> Iterator[TableEntry]:
        """Yield the entries of an incarnation. epoch: of this switch's job; root_epoch: of the root's job."""
        upstream = allocation.job.upstream
        assert upstream is not None
        for result, message_type in _UP.items():
            keys = {"job_id": allocation.job_id, "epoch": epoch, "message_type": result}
            racks = len(upstream.ranges)
            yield cls.entry("leaf", keys, "up", type_at_root=message_type, root_epoch=root_epoch, racks=racks)
        down = {"leaf_epoch": epoch, "workers": upstream.num_workers}
        for message_type in FROM_ROOT:
            keys = {"job_id": allocation.job_id, "epoch": root_epoch, "message_type": message_type}
            if message_type is MessageType.ERROR:
                yield cls.entry("leaf", keys, "down_error", **down, racks=len(upstream.ranges))
            else:
                contributions = upstream.num_workers if message_type in _UP else 0
                yield cls.entry("leaf", keys, "down", **down, contributions=contributions)


class Replica(Control):
    """Rewrites every worker's copy of a result to the worker's addresses.

    One multicast group per job and one towards its root, one replication id per worker and root.
    """

    INSTANCE = "ThcEgress.replica"
    TABLES = ("replica",)

    @classmethod
    def contents(cls, deployment: Deployment) -> Iterator[Contents]:
        """Yield every worker's MAC and IP address, UDP port and id, and a root's: the leaf is its worker `rack`."""
        for allocation in allocate(deployment):
            job = allocation.job
            replicas = {number: allocation.replication_id(number) for number in job.numbered_workers}
            for number, worker in job.numbered_workers.items():
                yield cls._entry(replicas[number], worker, number)
            copies = tuple((worker.port, replicas[number]) for number, worker in job.numbered_workers.items())
            yield MulticastGroup(allocation.multicast_group, copies)
            if (root := job.upstream) is not None:
                yield cls._entry(allocation.root_replication_id, root, root.rack)
                yield MulticastGroup(allocation.root_group, ((root.port, allocation.root_replication_id),))

    @classmethod
    def _entry(cls, rid: int, to: Peer, number: int) -> TableEntry:
        addresses = {"mac": mac_number(to.mac), "ip": int(to.ip), "port": to.udp_port}
        return cls.entry("replica", {"egress_rid": rid}, "to_worker", **addresses, worker_id=number)
