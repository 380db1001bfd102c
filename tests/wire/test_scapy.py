"""Golden packets as scapy sees them."""

import tomllib
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from thc_scapy import PORT, VERSION, Thc, ThcChallenge, ThcError, ThcHello, ThcWelcome

PACKETS = tomllib.loads((Path(__file__).parents[1] / "vectors/golden_packets.toml").read_text())["packet"]
PAYLOADS = {"hello": ThcHello, "welcome": ThcWelcome, "challenge": ThcChallenge, "error": ThcError}


def not_zero(fields: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in fields.items() if value}


@pytest.mark.parametrize("golden", PACKETS, ids=lambda golden: golden["name"])
def test_dissects_and_builds(golden):
    data = bytes.fromhex(golden["bytes"])
    frame = Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=40000, dport=PORT) / Raw(data)
    thc = Ether(bytes(frame))[Thc]
    assert not_zero(thc.fields) == {"version": VERSION} | golden["header"]
    assert bytes(Thc(version=VERSION, **golden["header"]) / thc.payload) == data


@pytest.mark.parametrize(
    "golden", [golden for golden in PACKETS if PAYLOADS.keys() & golden.keys()], ids=lambda golden: golden["name"]
)
def test_dissects_and_builds_payloads(golden):
    (name,) = PAYLOADS.keys() & golden.keys()
    layer = PAYLOADS[name]
    expected = {field: int(value, 16) if isinstance(value, str) else value for field, value in golden[name].items()}
    expected |= {"values": golden["values"]} if "values" in golden else {}
    payload = Thc(bytes.fromhex(golden["bytes"]))[layer]
    assert not_zero(payload.fields) == not_zero(expected)
    assert bytes(layer(**expected)) == bytes(payload)
