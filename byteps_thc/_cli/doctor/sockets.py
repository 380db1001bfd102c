"""Checks of kernel UDP: the server's port, socket buffers."""

import socket
from collections.abc import Sequence

from byteps_thc._base.wire.layout import UDP_PORT
from byteps_thc._cli.doctor.finding import Finding, State

#: Receive buffer that workers and thc-ps request (worker_dpdk/io/udp_io.h, thc-ps --rcvbuf).
WANTED_BUFFER_BYTES = 64 << 20
#: From asm-generic/socket.h; the socket module has no name for it.
_SO_RCVBUFFORCE = 33


def check_port(port: int = UDP_PORT) -> Sequence[Finding]:
    """Whether thc-ps can listen here."""
    name = f"UDP port {port}"
    family, all_addresses = (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((all_addresses, port))
        except OSError:
            meaning = "a program has it, a thc-ps perhaps: another one cannot listen"
            return [Finding(name, State.OPTIONAL, meaning, f"ss -ulpn 'sport = :{port}'    # or: thc-ps --port PORT")]
    return [Finding(name, State.OK, "free: thc-ps can listen")]


def check_socket_buffer(wanted_bytes: int = WANTED_BUFFER_BYTES) -> Sequence[Finding]:
    """Whether the kernel grants the receive buffer that bursts of results need."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, wanted_bytes)  # root, whatever rmem_max says
        except PermissionError:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted_bytes)
        granted_bytes = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it
    if granted_bytes >= wanted_bytes:
        return [Finding("socket buffer", State.OK, f"{_mib(granted_bytes)} granted")]
    meaning = f"{_mib(granted_bytes)} of {_mib(wanted_bytes)} granted: less in flight on fast or long ways"
    return [Finding("socket buffer", State.PROBLEM, meaning, f"sysctl -w net.core.rmem_max={wanted_bytes}")]


def _mib(count_bytes: int) -> str:
    return f"{count_bytes / (1 << 20):.3g} MiB"
