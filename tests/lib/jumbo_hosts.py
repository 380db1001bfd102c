"""Two hosts whose links take jumbo frames, behind a bridge that can be made to drop, without a word, what is larger."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from thc_lab.namespaces import Cable, CableEnd, Namespaces, command_inside, connect

JUMBO_MTU_BYTES = 9000
SERVER_IP = "10.9.0.2"


@dataclass(frozen=True)
class JumboHosts:
    """Namespaces of both hosts; the server has SERVER_IP."""

    worker: str
    server: str
    narrow: Callable[[int], None]
    """from now on the bridge takes so many bytes"""


def connect_jumbo_hosts(namespaces: Namespaces) -> JumboHosts:
    worker, server, bridge = (namespaces.add(name) for name in ("worker", "server", "bridge"))
    _ip(bridge, "link", "add", "br0", "type", "bridge")
    _ip(bridge, "link", "set", "br0", "up")
    for number, host in enumerate((worker, server), start=1):
        host_end = CableEnd(host, "eth0", f"02:00:00:00:00:0{number}", f"10.9.0.{number}/24")
        bridge_end = CableEnd(bridge, f"port{number}", f"02:00:00:00:01:0{number}")
        connect(Cable(host_end, bridge_end, mtu_bytes=JUMBO_MTU_BYTES))
        _ip(bridge, "link", "set", bridge_end.interface, "master", "br0")

    def narrow(mtu_bytes: int) -> None:
        for number in (1, 2):
            _ip(bridge, "link", "set", f"port{number}", "mtu", str(mtu_bytes))

    return JumboHosts(worker, server, narrow)


def _ip(namespace: str, *arguments: str) -> None:
    subprocess.run([*command_inside(namespace), "ip", *arguments], check=True, timeout=10)
