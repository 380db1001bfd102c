"""docs/wireshark/thc.lua in tshark: it shows the golden packets' fields and names the errors of bad packets."""

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap
from thc_scapy import PORT, VERSION

ROOT = Path(__file__).parents[2]
PACKETS: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/vectors/golden_packets.toml").read_text())["packet"]
GOLDEN = {packet["name"]: bytes.fromhex(packet["bytes"]) for packet in PACKETS}
pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed (apt install tshark)")


def tshark(datagrams: list[bytes], folder: Path, *options: str) -> list[str]:
    """Lines that tshark prints about a capture of the datagrams."""
    capture = folder / "capture.pcap"
    frames = [
        Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=PORT, dport=40000) / Raw(datagram)
        for datagram in datagrams
    ]
    wrpcap(str(capture), frames)
    command = ["tshark", "-X", f"lua_script:{ROOT / 'docs/wireshark/thc.lua'}", "-r", str(capture), *options]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "Lua" not in run.stderr, run.stderr
    return run.stdout.splitlines()


def info(datagrams: list[bytes], folder: Path) -> list[list[str]]:
    """Every packet's Info column and expert information."""
    return [
        line.split("\t")
        for line in tshark(datagrams, folder, "-T", "fields", "-e", "_ws.col.Info", "-e", "_ws.expert.message")
    ]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every golden packet's fields as tshark shows them."""
    lines = tshark(list(GOLDEN.values()), tmp_path_factory.mktemp("golden"), "-T", "ek")
    packets = [json.loads(line)["layers"]["thc"] for line in lines if '"layers"' in line]
    shown = [
        {name.removeprefix("thc_thc_"): value for name, value in packet.items() if name.startswith("thc_thc_")}
        for packet in packets
    ]
    return dict(zip(GOLDEN, shown, strict=True))


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: packet["name"])
def test_shows_every_field_of_golden_packets(packet, shown):
    expected = {"version": VERSION} | packet["header"]
    for struct in ("hello", "welcome", "challenge", "error"):
        for name, value in packet.get(struct, {}).items():
            expected[f"{struct}_{name}"] = int(value, 16) if isinstance(value, str) else value
    values = shown[packet["name"]]
    whole_numbers = {
        name: int(value, 0)
        for name, value in values.items()
        if isinstance(value, str) and name not in ("codes", "aggregate", "norm")
    }
    assert {name: value for name, value in whole_numbers.items() if value} == {
        name: value for name, value in expected.items() if value
    }
    assert values["flags_retransmit"] == bool(packet["header"].get("flags", 0) & 1)
    assert values["flags_partial"] == bool(packet["header"].get("flags", 0) & 2)
    assert values["flags_congested"] == bool(packet["header"].get("flags", 0) & 8)


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: packet["name"])
def test_shows_the_payload_of_golden_packets(packet, shown):
    values, payload = shown[packet["name"]], GOLDEN[packet["name"]][32:]
    if "norms" in packet:
        assert [float(norm) for norm in values["norm"]] == packet["norms"]
    if "codes" in packet:
        assert values["codes"] == payload.hex(":")
    if "aggregate" in packet:
        assert values["aggregate"] == payload.hex(":")
    if "values" in packet:
        assert [int(value) for value in values["hello_table_value"]] == packet["values"]


def test_info_column_says_what_the_packet_is(tmp_path):
    names = ("codes", "aggregate", "error_incomplete", "hello")
    assert info([GOLDEN[name] for name in names], tmp_path) == [
        ["CODES job 258 worker 2 round 16909060 slot 262 partition 7 chunk 2057 [retransmit]", ""],
        ["AGGREGATE job 258 worker 2 round 16909060 slot 262 partition 7 chunk 2057 of 2/3", ""],
        ["ERROR job 258 worker 2 round 16909060 slot 262 incomplete", ""],
        ["HELLO job 258 worker 2", ""],
    ]


def test_bad_packets_are_pointed_out(tmp_path):
    codes = GOLDEN["codes"]
    lines = info([codes[:-1], codes + b"\0", b"\x01" + codes[1:], codes[:28] + b"\x01" + codes[29:]], tmp_path)
    assert [line[1] for line in lines] == [
        "Length does not match payload_count",
        "Length does not match payload_count",
        "Unknown protocol version",
        "A switch's internal field is set outside the switch",
    ]
