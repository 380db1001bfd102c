"""Prints how many codes the packets have of a worker beside thc-ps and of one on another host, with jumbo frames.

Then, where the interface of thc-ps takes 1500 bytes and the other host's more, those of the latter.
"""

from __future__ import annotations

import subprocess

from jumbo_hosts import SERVER_IP, connect_jumbo_hosts

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from byteps_thc._scheme.config import ThcConfig
from thc_lab.namespaces import Namespaces, command_inside, inside


def join(address: str, worker: int, workers: int, job: int) -> Session:
    return Session([address], job=job, worker=worker, workers=workers, config=ThcConfig())


def main() -> None:
    with Namespaces() as namespaces:
        hosts = connect_jumbo_hosts(namespaces)
        with inside(hosts.server):
            thc_ps = ParameterServer(ip=SERVER_IP)
            beside = join(thc_ps.address, 0, 2, job=1)
        with thc_ps, beside:
            with inside(hosts.worker):
                other = join(thc_ps.address, 1, 2, job=1)
            with other:
                print("beside", beside.codes_per_packet, "other", other.codes_per_packet)
            subprocess.run([*command_inside(hosts.server), "ip", "link", "set", "eth0", "mtu", "1500"], check=True)
            with inside(hosts.worker), join(thc_ps.address, 0, 1, job=2) as narrow:
                print("narrow", narrow.codes_per_packet)


if __name__ == "__main__":
    main()
