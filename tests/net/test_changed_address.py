"""A worker whose address changes in the middle (NAT, DHCP, roaming) resumes, and sums stay exact."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from joined_sessions import check_sums, sessions

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.udp_relay import UdpRelay

CONFIG = ServerCodes(codes_per_packet=1024)
COUNTS = [100_000, 3_000]


class Nat(UdpRelay):
    """Forgets its mappings after some results: datagrams to the old ports are lost."""

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
        super().close()
        for each in self._forgotten:
            each.close()


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
