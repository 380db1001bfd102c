"""Packets a second of one session with 1 and 2 polling threads, against one thc-ps with 1 and 2 packet threads.

One worker pushes partitions of 2^20 codes over loopback, 1024 a packet as on Ethernet, a few in flight; there is
nothing to compute. A packet goes up and its sum comes down. The sessions take turns on the same server. Four threads
on fewer cores share them: read the table with the number of cores in mind.

    python evaluation/benchmarks/bench_polling_threads.py [--json build/bench/polling_threads.json]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from ratio import compared, medians_us, report

from byteps_thc import ThcConfig
from byteps_thc.tools.launch import ParameterServer
from byteps_thc.transport.session import Session, UdpConfig

CODES = 1 << 20
CODES_PER_PACKET = 1024
IN_FLIGHT = 4
PACKETS = IN_FLIGHT * CODES // CODES_PER_PACKET


def pusher(session: Session) -> Callable[[], object]:
    """Return what pushes IN_FLIGHT partitions and waits for their sums."""
    codes = np.zeros(CODES // 2, np.uint8)
    aggregates = [session.new_aggregate(CODES) for _ in range(IN_FLIGHT)]
    contributions = np.zeros((IN_FLIGHT, session.chunks(CODES)), np.uint8)

    def push() -> None:
        stages = [session.push_codes(i, codes, aggregates[i], contributions[i]) for i in range(IN_FLIGHT)]
        for stage in stages:
            session.wait(stage, 60)

    return push


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    config = ThcConfig(codes_per_packet=CODES_PER_PACKET)
    rows = []
    for shards in (1, 2):
        with ExitStack() as stack:
            server = stack.enter_context(ParameterServer(["--threads", str(shards)]))
            sessions = {
                threads: stack.enter_context(
                    Session(
                        [server.address],
                        job=threads,
                        worker=0,
                        workers=1,
                        config=config,
                        backend=UdpConfig(local="127.0.0.1:0"),
                        polling_threads=threads,
                    )
                )
                for threads in (1, 2)
            }
            us = medians_us({str(threads): pusher(session) for threads, session in sessions.items()}, args.repeats)
            for threads, session in sessions.items():
                counters = session.counters()
                repeated = counters["retransmissions"] / counters["codes_sent"]
                rate = PACKETS / us[str(threads)]
                name = f"{shards} packet threads, {threads} polling threads"
                print(f"{name}: {rate:.3f} M packets/s, {repeated:.2%} repeated")
            what = f"1000 packets, 2 polling threads, packet threads of thc-ps: {shards}"
            own, peer = (us[threads] * 1000 / PACKETS for threads in ("2", "1"))
            rows.append(compared(what, own, "1 polling thread", peer))
    report(f"loopback, {os.cpu_count()} cores", rows, args.json)


if __name__ == "__main__":
    main()
