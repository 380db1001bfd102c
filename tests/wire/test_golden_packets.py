"""tests/vectors/golden_packets.toml against the generated Python layout, and as scapy sees them."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from thc_scapy import PORT, VERSION, Thc, ThcChallenge, ThcError, ThcHello, ThcWelcome

from byteps_thc._scheme.adding.tables import LookupTable
from thc_switch.hello import pack_payload, unpack_payload
from thc_switch.wire import ChallengePayload, ErrorPayload, Header, HelloPayload, MessageType, WelcomePayload

VECTORS = Path(__file__).parents[1] / "vectors/golden_packets.toml"
PACKETS: list[dict[str, Any]] = tomllib.loads(VECTORS.read_text())["packet"]
LAYERS = {"hello": ThcHello, "welcome": ThcWelcome, "challenge": ThcChallenge, "error": ThcError}
STRUCTS = {"hello": HelloPayload, "welcome": WelcomePayload, "challenge": ChallengePayload, "error": ErrorPayload}


def numbers(fields: dict[str, int | str]) -> dict[str, int]:
    """64-bit fields are written as hexadecimal text: TOML integers are signed."""
    return {name: int(value, 16) if isinstance(value, str) else value for name, value in fields.items()}


def payload(packet: dict[str, Any]) -> bytes:
    """Encode the payload that the packet's fields describe."""
    data = b"".join(struct(**numbers(packet[name])).pack() for name, struct in STRUCTS.items() if name in packet)
    data += np.array(packet.get("values", []), ">u2").tobytes()
    data += np.array(packet.get("norms", []), ">f4").tobytes()
    data += np.array(packet.get("aggregate", []), f">u{packet['header']['value_bits'] // 8}").tobytes()
    return data + reference.pack(np.array(packet.get("codes", []), np.uint8), packet["header"]["code_bits"]).tobytes()


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: packet["name"])
def test_encodes_to_the_bytes_and_back(packet):
    data = bytes.fromhex(packet["bytes"])
    header = Header(**packet["header"])
    assert header.pack() + payload(packet) == data
    assert Header.unpack(data) == header
    for name, struct in STRUCTS.items():
        if name in packet:
            assert struct.unpack(data[Header.SIZE_BYTES :]) == struct(**numbers(packet[name]))


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: packet["name"])
def test_truncated_packets_are_refused(packet):
    data = bytes.fromhex(packet["bytes"])
    with pytest.raises(ValueError, match="needs 32 bytes"):
        Header.unpack(data[: Header.SIZE_BYTES - 1])


def test_every_message_type_has_a_packet():
    assert {packet["header"]["message_type"] for packet in PACKETS} == set(MessageType)


def test_aggregate_is_what_the_codes_sum_to():
    packets = {packet["name"]: packet for packet in PACKETS}
    values = packets["hello"]["values"]
    codes = np.array(packets["codes"]["codes"], np.uint8)
    total = reference.lookup_sum([codes, np.full_like(codes, 3)], tuple(values))
    assert total.tolist() == packets["aggregate"]["aggregate"]


def test_hello_carries_the_hash_of_the_table():
    packet = next(packet for packet in PACKETS if packet["name"] == "hello")
    table = LookupTable(2, 4, 1 / 32, tuple(packet["values"]), 0.0)
    assert f"{table.hash:016x}" == packet["hello"]["table_hash"]


def test_hello_is_read_and_written_with_its_table():
    packet = next(packet for packet in PACKETS if packet["name"] == "hello")
    data = bytes.fromhex(packet["bytes"])[Header.SIZE_BYTES :]
    fields, values = unpack_payload(data, code_bits=2)
    assert (fields, values) == (HelloPayload(**numbers(packet["hello"])), tuple(packet["values"]))
    assert pack_payload(fields, values) == data
    with pytest.raises(ValueError, match="of 3-bit codes needs"):
        unpack_payload(data, code_bits=3)


def not_zero(fields: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in fields.items() if value}


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: packet["name"])
def test_scapy_dissects_and_builds(packet):
    data = bytes.fromhex(packet["bytes"])
    frame = Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=40000, dport=PORT) / Raw(data)
    thc = Ether(bytes(frame))[Thc]
    assert not_zero(thc.fields) == {"version": VERSION} | packet["header"]
    assert bytes(Thc(version=VERSION, **packet["header"]) / thc.payload) == data


@pytest.mark.parametrize(
    "packet", [packet for packet in PACKETS if LAYERS.keys() & packet.keys()], ids=lambda packet: packet["name"]
)
def test_scapy_dissects_and_builds_payloads(packet):
    (name,) = LAYERS.keys() & packet.keys()
    layer = LAYERS[name]
    expected = numbers(packet[name]) | ({"values": packet["values"]} if "values" in packet else {})
    payload = Thc(bytes.fromhex(packet["bytes"]))[layer]
    assert not_zero(payload.fields) == not_zero(expected)
    assert bytes(layer(**expected)) == bytes(payload)
