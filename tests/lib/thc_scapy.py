"""THC messages as scapy layers, made straight from wire.toml: not from the generated layouts they are compared with."""

import tomllib
from pathlib import Path
from typing import Any

from scapy.fields import ByteField, Field, FieldListField, IntField, LongField, ShortField, ThreeBytesField
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_bottom_up

ROOT = Path(__file__).parents[2]
WIRE: dict[str, Any] = tomllib.loads((ROOT / "byteps_thc/_base/wire/wire.toml").read_text())
VERSION: int = WIRE["protocol"]["version"]
PORT: int = WIRE["protocol"]["udp_port"]
HEADER_BYTES: int = sum(field["bits"] for field in WIRE["header"]) // 8
TYPES: dict[str, int] = {name: entry["value"] for name, entry in WIRE["message_types"].items()}
REASONS: dict[str, int] = {name: entry["value"] for name, entry in WIRE["error_reasons"].items()}
FLAGS: dict[str, int] = {name: 1 << entry["bit"] for name, entry in WIRE["flags"].items()}
INTERNAL_FIELDS: tuple[str, ...] = tuple(field["name"] for field in WIRE["header"] if field.get("internal"))
_SCAPY_FIELDS = {8: ByteField, 16: ShortField, 24: ThreeBytesField, 32: IntField, 64: LongField}


def _fields(struct: str) -> list[Field[Any, Any]]:
    return [_SCAPY_FIELDS[field["bits"]](field["name"], 0) for field in WIRE[struct]]


class ThcHello(Packet):
    name = "THC HELLO"
    fields_desc = [  # noqa: RUF012
        *_fields("hello"),
        FieldListField(
            "values",
            [],
            ShortField("value", 0),
            count_from=lambda hello: 1 << hello.underlayer.code_bits,
            max_count=256,
        ),
    ]


class ThcWelcome(Packet):
    name = "THC WELCOME"
    fields_desc = _fields("welcome")


class ThcChallenge(Packet):
    name = "THC CHALLENGE"
    fields_desc = _fields("challenge")


class ThcError(Packet):
    name = "THC ERROR"
    fields_desc = _fields("error")


class Thc(Packet):
    """Header; the payload of other messages than HELLO, WELCOME, CHALLENGE and ERROR is Raw."""

    name = "THC"
    fields_desc = _fields("header")
    _PAYLOADS = {  # noqa: RUF012
        TYPES["hello"]: ThcHello,
        TYPES["welcome"]: ThcWelcome,
        TYPES["challenge"]: ThcChallenge,
        TYPES["error"]: ThcError,
    }

    def guess_payload_class(self, payload: bytes) -> type[Packet]:  # noqa: ARG002  scapy's signature
        return self._PAYLOADS.get(self.message_type, Raw)


bind_bottom_up(UDP, Thc, dport=PORT)
bind_bottom_up(UDP, Thc, sport=PORT)
