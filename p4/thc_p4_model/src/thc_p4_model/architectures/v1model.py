"""v1model as bmv2's simple_switch does it: ingress, replication, egress, clones, resubmission, recirculation.

Also as in simple_switch: metadata of recirculated, resubmitted and cloned packets are zero, `ingress_port` too, but for
`instance_type`, `packet_length` and fields of `@field_list`; a parser error does not drop the packet. An ingress clone
is parsed a second time, with the `ingress_port` through which its packet came to the switch, recirculated or not.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from thc_p4_model.blocks import block_of, field_paths
from thc_p4_model.errors import ControlError, PacketLoopError
from thc_p4_model.externs.runtime import ExternRuntime
from thc_p4_model.externs.v1model import CLASSES, DROP_PORT, FUNCTIONS, V1State
from thc_p4_model.interfaces import ParserError, Program
from thc_p4_model.packet import PacketIn, PacketOut
from thc_p4_model.switch import Arrival, Output, Switch
from thc_p4_model.values import copy_value

DEFAULT_TABLE_SIZE = 1024
INSTANCE_NORMAL = 0
INSTANCE_INGRESS_CLONE = 1
INSTANCE_EGRESS_CLONE = 2
INSTANCE_RECIRCULATED = 4
INSTANCE_REPLICATED = 5
INSTANCE_RESUBMITTED = 6
INSTANCE_TYPES = {"new": INSTANCE_NORMAL, "recirculated": INSTANCE_RECIRCULATED, "resubmitted": INSTANCE_RESUBMITTED}

Preserved = list[tuple[tuple[str, ...], Any]]
"""Attribute paths in the user metadata and values."""


class _Carried(NamedTuple):
    """State that returns to ingress with a packet."""

    first_port: int
    fields: Preserved


@dataclass(slots=True)
class _Copy:
    """A packet between ingress and egress."""

    first_port: int
    """Through which it came to the switch, before it recirculated."""
    port: int
    headers: Any
    metadata: Any
    standard: Any
    packet: PacketIn
    passes: int
    truncate_bytes: int | None = None
    """Asked for in ingress; only the packet itself is cut then, no copy."""


class V1ModelSwitch(Switch):
    """A simple_switch."""

    def __init__(self, program: Program, *, seed: int = 0, **limits: Any) -> None:
        """seed: of random(). limits: see Switch."""
        self._state = V1State(random.Random(seed))
        instance = program.instantiate(ExternRuntime(self._state, CLASSES, FUNCTIONS, DEFAULT_TABLE_SIZE))
        super().__init__([instance], **limits)
        main = instance.main
        self._parser = block_of(main, "p")
        self._verify = block_of(main, "vr").apply
        self._ingress = block_of(main, "ig").apply
        self._egress = block_of(main, "eg").apply
        self._compute = block_of(main, "ck").apply
        self._deparse = block_of(main, "dep").apply
        _, headers, metadata, standard = self._parser.params
        self._new_headers: Callable[[], Any] = headers.type.new
        self._metadata_type = metadata.type
        self._new_standard: Callable[[], Any] = standard.type.new
        self._field_paths: dict[int, list[tuple[str, ...]]] = {}

    def take_digests(self) -> list[tuple[int, Any]]:
        """(receiver, data) of the digests since the last call."""
        with self.lock:
            digests = list(self._state.digests)
            self._state.digests.clear()
            return digests

    def _check_port(self, port: int) -> None:
        if not 0 <= port < DROP_PORT:
            raise ControlError(f"port {port} is not within 0..{DROP_PORT - 1}")

    def _run(self, arrival: Arrival) -> list[Output]:
        outputs: list[Output] = []
        copies = deque(self._run_ingress(arrival))
        while copies:
            outputs += self._run_egress(copies.popleft(), copies)
        return outputs

    # Ingress.

    def _run_ingress(self, arrival: Arrival) -> list[_Copy]:
        packet = PacketIn(arrival.data)
        state = self._state
        state.begin("ingress", packet, len(arrival.data))
        metadata, standard = self._metadata_type.new(), self._new_standard()
        first_port = arrival.port
        if arrival.kind == "new":
            standard.ingress_port = first_port
            standard.ingress_global_timestamp = self._now_us()
        else:
            first_port = arrival.carried.first_port
            standard.instance_type = INSTANCE_TYPES[arrival.kind]
            _restore(metadata, arrival.carried.fields)
        standard.packet_length = len(arrival.data)
        headers = self._parse(packet, metadata, standard)
        state.checksum_error = False
        self._verify(headers, metadata)
        standard.checksum_error = int(state.checksum_error)
        self._ingress(headers, metadata, standard)
        copy = _Copy(first_port, 0, headers, metadata, standard, packet, arrival.passes + 1)
        return self._leave_ingress(arrival, copy)

    def _parse(self, packet: PacketIn, metadata: Any, standard: Any) -> Any:
        headers = self._new_headers()
        try:
            self._parser.apply(packet, headers, metadata, standard)
        except ParserError as error:
            standard.parser_error = error.name
            self.statistics.parser_errors += 1
        return headers

    def _leave_ingress(self, arrival: Arrival, copy: _Copy) -> list[_Copy]:
        """Send the packet as simple_switch does: clones first; resubmission before multicast before unicast."""
        state, standard = self._state, copy.standard
        resubmit_fields, digest = state.resubmit_fields, state.digest
        copies: list[_Copy] = []
        if state.clone_session is not None:
            copies = self._ingress_clones(arrival, copy, state.clone_session, state.clone_fields)
        if digest is not None:
            state.digests.append(digest)
        if resubmit_fields is not None:
            carried = _Carried(copy.first_port, self._preserve(copy.metadata, resubmit_fields))
            self._return_to_ingress(arrival.port, arrival.data, "resubmitted", copy.passes, carried)
        elif standard.mcast_grp:
            standard.instance_type = INSTANCE_REPLICATED
            copies += self._replicas(copy, standard.mcast_grp)
        elif standard.egress_spec == DROP_PORT:
            self.statistics.dropped += 1
        else:
            standard.instance_type = INSTANCE_NORMAL
            copy.port = standard.egress_spec
            copy.truncate_bytes = state.truncate_bytes
            copies.append(copy)
        return copies

    def _ingress_clones(self, arrival: Arrival, copy: _Copy, session: int, fields: int | None) -> list[_Copy]:
        """Clones are the packet as it came in, parsed again."""
        packet = PacketIn(arrival.data)
        standard = self._new_standard()
        standard.ingress_port = copy.first_port
        headers = self._parse(packet, self._metadata_type.new(), standard)
        metadata = self._metadata_type.new()
        _restore(metadata, self._preserve(copy.metadata, fields))
        standard = self._clone_standard(copy, INSTANCE_INGRESS_CLONE)
        clone = _Copy(copy.first_port, 0, headers, metadata, standard, packet, copy.passes)
        return self._to_session(clone, session)

    def _clone_standard(self, copy: _Copy, instance_type: int) -> Any:
        standard = self._new_standard()
        standard.instance_type = instance_type
        standard.packet_length = copy.standard.packet_length
        return standard

    def _to_session(self, clone: _Copy, session: int) -> list[_Copy]:
        mirror = self.replication.mirror(session)
        if mirror is None:
            return []
        self.statistics.cloned += 1
        copies = self._replicas(clone, mirror.group) if mirror.group is not None else []
        if mirror.port is not None:
            clone.port = mirror.port
            if copies:
                clone.standard.egress_rid = copies[-1].standard.egress_rid  # as simple_switch leaves it
            copies.append(clone)
        return copies

    def _replicas(self, copy: _Copy, group: int) -> list[_Copy]:
        replicas = []
        for node in self.replication.copies(group):
            standard = copy.standard.copy()
            standard.egress_rid = node.rid
            headers, metadata = copy.headers.copy(), copy.metadata.copy()
            replicas.append(_Copy(copy.first_port, node.port, headers, metadata, standard, copy.packet, copy.passes))
        if not replicas:
            self.statistics.dropped += 1
        return replicas

    # Egress.

    def _run_egress(self, copy: _Copy, queue: deque[_Copy]) -> list[Output]:
        if copy.passes > self._max_passes:
            raise PacketLoopError(f"a packet was cloned more than {self._max_passes} times")
        state, standard = self._state, copy.standard
        state.begin("egress", copy.packet, standard.packet_length)
        state.truncate_bytes = copy.truncate_bytes
        standard.egress_port = copy.port
        standard.egress_spec = 0
        standard.egress_global_timestamp = self._now_us()
        standard.enq_timestamp = standard.egress_global_timestamp & 0xFFFF_FFFF
        self._egress(copy.headers, copy.metadata, standard)
        if state.clone_session is not None:
            queue.extend(self._egress_clones(copy, state.clone_session, state.clone_fields))
        if standard.egress_spec == DROP_PORT:
            self.statistics.dropped += 1
            return []
        self._compute(copy.headers, copy.metadata)
        out = PacketOut()
        self._deparse(out, copy.headers)
        data = out.data(copy.packet.rest())
        if state.recirculate_fields is not None:
            carried = _Carried(copy.first_port, self._preserve(copy.metadata, state.recirculate_fields))
            self._return_to_ingress(copy.port, data, "recirculated", copy.passes, carried)
            return []
        return [(copy.port, data[: state.truncate_bytes])]

    def _egress_clones(self, copy: _Copy, session: int, fields: int | None) -> list[_Copy]:
        """Clones are the packet as egress leaves it, and go through egress again."""
        metadata = self._metadata_type.new()
        _restore(metadata, self._preserve(copy.metadata, fields))
        standard = self._clone_standard(copy, INSTANCE_EGRESS_CLONE)
        clone = _Copy(copy.first_port, 0, copy.headers.copy(), metadata, standard, copy.packet, copy.passes + 1)
        return self._to_session(clone, session)

    # Metadata that stay with a packet.

    def _preserve(self, metadata: Any, index: int | None) -> Preserved:
        if index is None:
            return []
        if index not in self._field_paths:
            self._field_paths[index] = field_paths(self._metadata_type, index)
        return [(path, copy_value(attrgetter(".".join(path))(metadata))) for path in self._field_paths[index]]

    def _now_us(self) -> int:
        return self._now_ns() // 1000 & 0xFFFF_FFFF_FFFF


def _restore(metadata: Any, preserved: Preserved) -> None:
    for path, value in preserved:
        target = metadata
        for name in path[:-1]:
            target = getattr(target, name)
        setattr(target, path[-1], value)
