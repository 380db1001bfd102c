"""Packets that were damaged on the way, with right UDP checksums: jobs without a key notice, too, and repeat them."""

from contextlib import ExitStack

import pytest
from free_ports import free_tcp_port
from joined_sessions import LOOPBACK, check_sums, sessions, sessions_at
from on_path import OnPath
from packet_checksum import CHECKSUM_BYTES, CHECKSUM_FLAG, FLAGS, HEADER_BYTES, checksum
from scraped_metrics import total

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.udp_relay import RelayFaults, UdpRelay
from thc_switch.wire import Header, MessageType

CONFIG = ServerCodes(codes_per_packet=512)
COUNTS = [40 * 512 + 100, 3]
DAMAGE = RelayFaults(corrupt=0.1)


def test_between_workers_and_thc_ps() -> None:
    port = free_tcp_port()
    with (
        ParameterServer(["--metrics-port", str(port), "--threads", "1"]) as server,
        UdpRelay(server.address, DAMAGE) as relay,
        ExitStack() as stack,
    ):
        joined = sessions(stack, [relay.address], 2, CONFIG)
        check_sums(joined, CONFIG, COUNTS, steps=3)
        assert total(port, "thc_ps_io_damaged_total", awaited=1) > 0
        assert sum(session.counters()["damaged"] for session in joined) > 0


def test_between_leaves_and_root() -> None:
    ports = [free_tcp_port() for _ in range(2)]
    with ExitStack() as stack:
        root = stack.enter_context(ParameterServer(["--metrics-port", str(ports[0]), "--threads", "1"]))
        relay = stack.enter_context(UdpRelay(root.address, DAMAGE))
        racks = ["--upstream", relay.address, "--racks", "0-0,1-1", "--threads", "1"]
        leaves = [
            stack.enter_context(ParameterServer([*racks, "--rack", str(rack), *metrics]))
            for rack, metrics in enumerate((["--metrics-port", str(ports[1])], []))
        ]
        check_sums(sessions_at(stack, [[leaf.address] for leaf in leaves], CONFIG), CONFIG, COUNTS, steps=3)
        assert all(total(port, "thc_ps_io_damaged_total", awaited=1) > 0 for port in ports)


@pytest.mark.parametrize("keyed", [False, True])
def test_every_packet_of_a_joined_worker_has_a_checksum_or_a_tag(keyed: bool, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """But HELLO before CHALLENGE, CHALLENGE itself, as a switch has none, and PROBE."""
    arguments = ["--threads", "1"]
    if keyed:
        key_file = tmp_path / "key"
        key_file.touch(0o600)
        key_file.write_text(bytes(32).hex())
        arguments += ["--key-file", str(key_file)]
    seen_up: list[bytes] = []

    def see(datagram: bytes) -> list[bytes]:
        seen_up.append(datagram)
        return [datagram]

    with ParameterServer(arguments) as server, OnPath(server.address, up=see) as way:
        settings = {"job": 7, "worker": 0, "workers": 1, "codes": CONFIG, "backend": LOOPBACK}
        with Session([way.address], key=bytes(32) if keyed else None, **settings) as session:  # type: ignore[arg-type]
            check_sums([session], CONFIG, COUNTS)
    first, *others = seen_up
    assert first[FLAGS] == 0
    assert {Header.unpack(d).message_type for d in others} >= {MessageType.HELLO, MessageType.CODES}
    down = [d for d in way.seen_down if Header.unpack(d).message_type != MessageType.CHALLENGE]
    assert 0 < len(down) < len(way.seen_down)
    for datagram in [*others, *down]:
        in_header = datagram[HEADER_BYTES - CHECKSUM_BYTES : HEADER_BYTES]
        assert bool(datagram[FLAGS] & CHECKSUM_FLAG) != keyed
        assert in_header == (bytes(CHECKSUM_BYTES) if keyed else checksum(datagram))
