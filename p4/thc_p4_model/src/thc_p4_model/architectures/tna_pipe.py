"""One pipe of a Tofino: its ingress and its egress, each parser, match-action units and deparser."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thc_p4_model.blocks import bind_by_type, block_of
from thc_p4_model.externs.tna_state import MirrorRequest, TnaState
from thc_p4_model.interfaces import Block, P4Error, Package, ParserError, TypeInfo
from thc_p4_model.packet import PacketIn, PacketOut

NO_PORT = 0x1FF
"""`ucast_egress_port` until the program writes it: no unicast copy. Not a port of any Tofino."""
DROP = 1
"""Bit of drop_ctl: no unicast, multicast or resubmitted packet."""
DROP_MIRROR = 4
"""Bit of drop_ctl: no mirrored packet."""
PARSER_ERR_NO_MATCH = 0x0001
PARSER_ERR = {"PacketTooShort": 0x0002, "CounterRange": 0x0004, "ParserTimeout": 0x0008}
MAX_EGRESS_PARSE_BYTES = {"tna": 160, "t2na": None}
"""The egress parser of Tofino 1 looks no further into a packet, its intrinsic metadata included."""


@dataclass(slots=True)
class IngressResult:
    """Ingress's results for the traffic manager."""

    data: bytes
    tm: Any
    dropped: bool
    mirror: MirrorRequest | None
    resubmit: bytes | None


@dataclass(slots=True)
class EgressCopy:
    """The traffic manager's results for egress."""

    port: int
    data: bytes
    passes: int
    rid: int = 0
    first: bool = False
    queue: int = 0


class _Gress:
    """Ingress or egress of a pipe."""

    def __init__(self, package: Package, name: str, control_fixed: int = 2) -> None:
        self.parser_block = block_of(package, f"{name}_parser")
        self.parser = bind_by_type(self.parser_block, 3)
        self.control = bind_by_type(block_of(package, name), control_fixed)
        self.deparser = bind_by_type(block_of(package, f"{name}_deparser"), 3)
        self.new_headers = self.parser_block.params[1].type.new
        self.new_metadata = self.parser_block.params[2].type.new


class Pipe:
    """A pipe; `package` is the program's `Pipeline` for it."""

    def __init__(
        self,
        package: Package,
        state: TnaState,
        types: Mapping[str, TypeInfo],
        target: str,
        drops_parser_errors: bool,
    ) -> None:
        """drops_parser_errors: ingress does so unless its program looks at parser_err; egress never does."""
        self.state = state
        self._types = types
        self._drops_parser_errors = drops_parser_errors
        self._max_egress_parse_bytes = MAX_EGRESS_PARSE_BYTES[target]
        self._ingress = _Gress(package, "ingress")
        self._egress = _Gress(package, "egress")

    def ingress(self, port: int, data: bytes, resubmitted: bytes | None, now_ns: int) -> IngressResult | None:
        """Run ingress; None when the parser dropped the packet. resubmitted: the data of a resubmitted packet."""
        self.state.begin("ingress", len(data))
        arrived = self._new("ingress_intrinsic_metadata_t")
        arrived.set_valid()
        arrived.ingress_port = port
        arrived.ingress_mac_tstamp = now_ns & 0xFFFF_FFFF_FFFF
        arrived.resubmit_flag = int(resubmitted is not None)
        port_metadata = (resubmitted or b"").ljust(self.state.port_metadata_bytes, b"\0")
        packet = PacketIn(arrived.dump() + port_metadata + data)

        headers, metadata = self._ingress.new_headers(), self._ingress.new_metadata()
        by_type = self._new_all(
            "ingress_intrinsic_metadata_t",
            "ingress_intrinsic_metadata_for_tm_t",
            "ingress_intrinsic_metadata_from_parser_t",
            "ingress_intrinsic_metadata_for_deparser_t",
        )
        parser_err = _parse(self._ingress, (packet, headers, metadata), by_type)
        if parser_err and self._drops_parser_errors:
            return None
        if not by_type["ingress_intrinsic_metadata_t"].valid:
            by_type["ingress_intrinsic_metadata_t"] = arrived
        from_parser = by_type["ingress_intrinsic_metadata_from_parser_t"]
        from_parser.global_tstamp = arrived.ingress_mac_tstamp
        from_parser.parser_err = parser_err
        tm = by_type["ingress_intrinsic_metadata_for_tm_t"]
        tm.ucast_egress_port = tm.ucast_egress_port or NO_PORT

        self._ingress.control((headers, metadata), by_type)
        out = PacketOut()
        self._ingress.deparser((out, headers, metadata), by_type)
        drop_ctl = by_type["ingress_intrinsic_metadata_for_deparser_t"].drop_ctl
        mirror = None if drop_ctl & DROP_MIRROR else self.state.mirror
        return IngressResult(out.data(packet.rest()), tm, bool(drop_ctl & DROP), mirror, self.state.resubmit)

    def egress(self, copy: EgressCopy, now_ns: int) -> tuple[bytes | None, bytes, MirrorRequest | None]:
        """Run egress: the packet to send (None: dropped), the packet to mirror, and to where."""
        self.state.begin("egress", len(copy.data))
        arrived = self._new("egress_intrinsic_metadata_t")
        arrived.set_valid()
        arrived.egress_port = copy.port
        arrived.egress_rid = copy.rid
        arrived.egress_rid_first = int(copy.first)
        arrived.egress_qid = copy.queue
        arrived.pkt_length = len(copy.data)
        packet = PacketIn(arrived.dump() + copy.data)

        headers, metadata = self._egress.new_headers(), self._egress.new_metadata()
        by_type = self._new_all(
            "egress_intrinsic_metadata_t",
            "egress_intrinsic_metadata_from_parser_t",
            "egress_intrinsic_metadata_for_deparser_t",
            "egress_intrinsic_metadata_for_output_port_t",
        )
        parser_err = _parse(self._egress, (packet, headers, metadata), by_type)
        self._check_egress_depth(self._egress.parser_block, packet)
        if not by_type["egress_intrinsic_metadata_t"].valid:
            by_type["egress_intrinsic_metadata_t"] = arrived
        from_parser = by_type["egress_intrinsic_metadata_from_parser_t"]
        from_parser.global_tstamp = now_ns & 0xFFFF_FFFF_FFFF
        from_parser.parser_err = parser_err

        self._egress.control((headers, metadata), by_type)
        out = PacketOut()
        self._egress.deparser((out, headers, metadata), by_type)
        data = out.data(packet.rest())
        drop_ctl = by_type["egress_intrinsic_metadata_for_deparser_t"].drop_ctl
        mirror = None if drop_ctl & DROP_MIRROR else self.state.mirror
        return None if drop_ctl & DROP else data, data, mirror

    def _check_egress_depth(self, parser: Block, packet: PacketIn) -> None:
        limit = self._max_egress_parse_bytes
        if limit is not None and packet.position > limit * 8:
            raise P4Error(
                parser.location,
                f"egress parser {parser.name} read {packet.position // 8} bytes; Tofino 1 allows {limit}, its"
                " intrinsic metadata included",
            )

    def _new(self, type_name: str) -> Any:
        return self._types[type_name].new()

    def _new_all(self, *type_names: str) -> dict[str, Any]:
        return {name: self._types[name].new() for name in type_names}


def _parse(gress: _Gress, first: tuple[Any, ...], by_type: Mapping[str, Any]) -> int:
    """Run a parser: its parser_err."""
    try:
        gress.parser(first, by_type)
    except ParserError as error:
        return PARSER_ERR.get(error.name, PARSER_ERR_NO_MATCH)
    return 0
