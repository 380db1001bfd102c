"""Prints the doctor's findings about a server behind a bridge that silently drops what is larger than 1500 bytes."""

from __future__ import annotations

import subprocess

from byteps_thc.tools.demo.namespaces import Namespaces, Plug, command_inside, inside
from byteps_thc.tools.doctor.server import check_server
from byteps_thc.tools.launch import ParameterServer

JUMBO_MTU_BYTES = 9000
SERVER_IP = "10.9.0.2"


def ip(namespace: str, *arguments: str) -> None:
    subprocess.run([*command_inside(namespace), "ip", *arguments], check=True, timeout=10)


def main() -> None:
    with Namespaces() as namespaces:
        worker, server, bridge = (namespaces.add(name) for name in ("worker", "server", "bridge"))
        ip(bridge, "link", "add", "br0", "type", "bridge")
        ip(bridge, "link", "set", "br0", "up")
        for number, host in enumerate((worker, server), start=1):
            port = f"port{number}"
            namespaces.connect(
                Plug(host, "eth0", f"02:00:00:00:00:0{number}", f"10.9.0.{number}/24"),
                Plug(bridge, port, f"02:00:00:00:01:0{number}"),
            )
            ip(host, "link", "set", "eth0", "mtu", str(JUMBO_MTU_BYTES))
            ip(bridge, "link", "set", port, "master", "br0")
        with inside(server):
            thc_ps = ParameterServer(ip=SERVER_IP)
        with thc_ps, inside(worker):
            for finding in check_server((SERVER_IP, int(thc_ps.address.split(":")[1]))):
                print(finding)


if __name__ == "__main__":
    main()
