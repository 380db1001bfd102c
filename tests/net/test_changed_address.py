"""A worker or leaf whose address changes in the middle (NAT, DHCP, roaming) goes on, and sums stay exact."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from joined_sessions import check_sums, sessions

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from byteps_thc._scheme.config import ThcConfig
from thc_lab.udp_relay import UdpRelay

CONFIG = ThcConfig(codes_per_packet=1024)
COUNTS = [100_000, 3_000]


class Nat(UdpRelay):
    """Forgets its mappings after some results: what is sent to the old ports is lost."""

    RESULTS = 120
    changes = 0
    _forgotten: tuple[socket.socket, ...] = ()

    def _relay_all_from(self, source: socket.socket) -> None:
        if source not in self._forgotten:
            super()._relay_all_from(source)

    def _relay(self, is_up: bool, datagram: bytes, by: socket.socket, *to: object) -> None:
        super()._relay(is_up, datagram, by, *to)  # type: ignore[arg-type]
        if not is_up and self.counters["down"] >= (self.changes + 1) * self.RESULTS:
            self.changes += 1
            self._forgotten += tuple(self._upstream.values())
            self._upstream.clear()

    def close(self) -> None:
        """Stop relaying."""
        super().close()
        for each in self._forgotten:
            each.close()


class Roaming(Nat):
    """The same to a server of both versions, whose workers change from IPv4 to IPv6 and back each time."""

    def _relay(self, is_up: bool, datagram: bytes, by: socket.socket, *to: object) -> None:
        if is_up and self.changes % 2:
            worker = next(worker for worker, upstream in self._upstream.items() if upstream is by)
            if by.family == socket.AF_INET:
                self._forgotten += (by,)
                by = self._upstream[worker] = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
                by.setblocking(False)
            to = (("::1", self._server[1]),)
        super()._relay(is_up, datagram, by, *to)


def test_workers_go_on_with_the_other_ip_version() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this kernel has no IPv6")
    with (
        ParameterServer(ip="::") as server,
        Roaming(f"127.0.0.1:{server.address.rpartition(':')[2]}") as relay,
        ExitStack() as stack,
    ):
        joined = sessions(stack, [relay.address], 2, CONFIG)
        check_sums(joined, CONFIG, COUNTS, steps=3)
        assert relay.changes >= 3
        assert all(session.counters()["rejoins"] == 0 for session in joined)


@pytest.mark.parametrize("keyed", [False, True])
def test_workers_go_on_from_other_addresses(keyed: bool, tmp_path: Path) -> None:
    key = bytes(range(32))
    key_file = tmp_path / "key"
    key_file.touch(0o600)
    key_file.write_text(key.hex())
    with (
        ParameterServer(["--key-file", str(key_file)] if keyed else []) as server,
        Nat(server.address) as nat,
        ExitStack() as stack,
    ):
        joined = sessions(stack, [nat.address], 2, CONFIG, key=key if keyed else None)
        check_sums(joined, CONFIG, COUNTS, steps=3)
        assert nat.changes >= 3
        assert all(session.counters()["rejoins"] == 0 for session in joined)


def test_a_leaf_goes_on_from_another_address() -> None:
    with ParameterServer() as root, Nat(root.address) as nat, ExitStack() as stack:
        arguments = ["--upstream", nat.address, "--racks", "0,1", "--rack"]
        racks = [stack.enter_context(ParameterServer([*arguments, str(rack)])) for rack in (0, 1)]
        joined = [
            stack.enter_context(Session([rack.address], job=1, worker=worker, workers=2, config=CONFIG))
            for worker, rack in enumerate(racks)
        ]
        check_sums(joined, CONFIG, COUNTS, steps=2)
        assert nat.changes >= 2
