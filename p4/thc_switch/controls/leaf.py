"""Leaf: headers of what goes from a rack to its root, and back, in egress."""

from __future__ import annotations

from collections.abc import Iterator

from byteps_thc._scheme.wire.layout import MessageType
from thc_switch.allocation import JobAllocation
from thc_switch.controls.base import Control
from thc_switch.controls.job_check import FROM_ROOT
from thc_switch.plan import TableEntry

#: What a rack's result is to the root.
_UP = {MessageType.AGGREGATE: MessageType.CODES, MessageType.MAX_NORM: MessageType.NORM}


class Leaf(Control):
    """`leaf` is empty until the agent opens a leaf's job: both epochs are in it."""

    INSTANCE = "ThcEgress.leaf"
    TABLES = ("leaf",)

    @classmethod
    def open_entries(cls, allocation: JobAllocation, epoch: int, root_epoch: int) -> Iterator[TableEntry]:
        """Yield the entries of an incarnation. epoch: of this switch's job; root_epoch: of the root's, another one."""
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
