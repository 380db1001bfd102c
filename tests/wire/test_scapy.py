"""Golden packets as scapy sees them: a layer made straight from wire.toml, not from the generated Python layout."""

import tomllib
from pathlib import Path

import pytest
from scapy.fields import ByteField, IntField, ShortField
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers

ROOT = Path(__file__).parents[2]
WIRE = tomllib.loads((ROOT / "byteps_thc/wire/wire.toml").read_text())
PACKETS = tomllib.loads((ROOT / "tests/vectors/golden_packets.toml").read_text())["packet"]
PORT = WIRE["protocol"]["udp_port"]
SCAPY_FIELDS = {8: ByteField, 16: ShortField, 32: IntField}


class Thc(Packet):
    name = "THC"
    fields_desc = [SCAPY_FIELDS[field["bits"]](field["name"], 0) for field in WIRE["header"]]  # noqa: RUF012


bind_layers(UDP, Thc, dport=PORT)


@pytest.mark.parametrize("golden", PACKETS, ids=lambda golden: golden["name"])
def test_dissects_and_builds(golden):
    data = bytes.fromhex(golden["bytes"])
    frame = Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=40000, dport=PORT) / Raw(data)
    thc = Ether(bytes(frame))[Thc]
    assert {name: value for name, value in thc.fields.items() if value} == {"version": 1} | golden["header"]
    assert bytes(Thc(version=1, **golden["header"]) / thc.payload) == data
