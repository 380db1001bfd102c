"""Prints the error of a worker whose path is too narrow: jumbo frames at both ends, and 1500 bytes in between.

From the beginning ("start"), or after a round ("later").
"""

from __future__ import annotations

import sys

import numpy as np
from jumbo_hosts import SERVER_IP, connect_jumbo_hosts
from pushed_codes import push_codes

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session, Timeouts
from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.errors import DeadlineError
from thc_lab.namespaces import Namespaces, inside

CODES = np.full(8192, 0x11, np.uint8)


def main() -> None:
    with Namespaces() as namespaces:
        hosts = connect_jumbo_hosts(namespaces)
        if sys.argv[1] == "start":
            hosts.narrow(1500)
        with inside(hosts.server):
            thc_ps = ParameterServer(ip=SERVER_IP)
        with thc_ps, inside(hosts.worker):
            timeouts = Timeouts(operation_s=3.0)
            with Session(
                [thc_ps.address],
                job=1,
                worker=0,
                workers=1,
                config=ThcConfig(codes_per_packet="auto"),
                timeouts=timeouts,
            ) as session:
                try:
                    push_codes(session, 0, CODES).wait(30)
                    print("a round is done")
                    hosts.narrow(1500)
                    push_codes(session, 1, CODES).wait(30)
                except DeadlineError as error:
                    print(error)


if __name__ == "__main__":
    main()
