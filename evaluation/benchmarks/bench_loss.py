"""Packets a second of two workers through a thc-ps whose network loses packets, as a share of the lossless rate.

Both workers push partitions of 2^20 codes over loopback, 1024 a packet as on Ethernet, without any computation. For
each rate, a thc-ps loses that share of received and of sent packets (--faults); all take turns in one run. "late"
networks hold back a quarter of the packets. The same is measured with a worker in each of two racks, whose thc-ps lose
packets, under a thc-ps that does not. The lossless case runs the same code, which loses one packet in 10^12.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from ratio import Row, medians_us, report

from byteps_thc import ServerCodes
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session, UdpConfig
from thc_lab.rack_servers import RackServers

CODES = 1 << 20
CODES_PER_PACKET = 1024
PARTITIONS = 16
PACKETS = PARTITIONS * CODES // CODES_PER_PACKET
#: share of lossless packets a second that must be left at a rate of loss
TARGETS = {0.0001: 0.95, 0.001: 0.90, 0.01: 0.75, 0.03: 0.50}


def joined(stack: ExitStack, addresses: list[str], job: int) -> list[Session]:
    """Join a worker at each address."""
    workers = len(addresses)

    def join(worker: int) -> Session:
        return Session(
            [addresses[worker]],
            job=job,
            worker=worker,
            workers=workers,
            codes=ServerCodes(codes_per_packet=CODES_PER_PACKET),
            backend=UdpConfig(local="127.0.0.1:0"),
        )

    with ThreadPoolExecutor(workers) as pool:
        return [stack.enter_context(session) for session in pool.map(join, range(workers))]


def one_server(stack: ExitStack, options: list[str], job: int) -> list[Session]:
    """Two workers at a thc-ps of their own."""
    server = stack.enter_context(ParameterServer(options))
    return joined(stack, [server.address] * 2, job)


def two_racks(stack: ExitStack, options: list[str], job: int) -> list[Session]:
    """A worker in each of two racks: their thc-ps lose packets, towards workers and towards the thc-ps above."""
    racks = stack.enter_context(RackServers((1, 1), leaf_arguments=options))
    return joined(stack, [racks.address_of(worker) for worker in range(2)], job)


def pusher(sessions: list[Session]) -> Callable[[], object]:
    """Return a function that pushes all partitions of both workers and waits for their sums."""
    codes = np.zeros(CODES // 2, np.uint8)
    shape = (PARTITIONS, sessions[0].chunks(CODES))
    buffers = [
        (session, [session.new_aggregate(CODES) for _ in range(PARTITIONS)], np.zeros(shape, np.uint8))
        for session in sessions
    ]

    def push() -> None:
        stages = [
            (session, session.push_codes(i, codes, aggregates[i], contributions[i]))
            for i in range(PARTITIONS)
            for session, aggregates, contributions in buffers
        ]
        for session, stage in stages:
            session.wait(stage, 60)

    return push


Start = Callable[[ExitStack, list[str], int], list[Session]]


def measure(start: Start, faults: dict[str, list[str]], repeats: int) -> dict[str, float]:
    """Print and return the time of a push [us] for each kind of network."""
    with ExitStack() as stack:
        sessions = {name: start(stack, options, job) for job, (name, options) in enumerate(faults.items(), 1)}
        us = medians_us({name: pusher(own) for name, own in sessions.items()}, repeats)
        for name, own in sessions.items():
            counters = [session.counters() for session in own]
            sent, repeated = (sum(c[key] for c in counters) for key in ("codes_sent", "retransmissions"))
            print(
                f"{start.__name__}, {name}: {PACKETS / us[name]:.3f} M packets/s, {repeated / sent:.3%} repeated, "
                f"round trip {counters[0]['smoothed_rtt_us']} us"
            )
    return us


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--rates", type=float, nargs="+", default=list(TARGETS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    losses = {f"{rate:.2%} lost": rate for rate in args.rates}
    drops = {"lossless": 1e-12, **losses}
    faults = {name: ["--faults", f"drop={rate}"] for name, rate in drops.items()}
    late = "reorder=0.25"
    disturbed = {"late": ["--faults", late], "late, 1.00% lost": ["--faults", f"{late},drop=0.01"]}
    measured = {
        "a thc-ps": measure(one_server, faults | disturbed, args.repeats),
        "two racks": measure(two_racks, faults, args.repeats),
    }
    rows = []
    for servers, us in measured.items():
        for name, rate in losses.items():
            share, target = us["lossless"] / us[name], TARGETS.get(rate)
            what = f"1000 packets of 2 workers, {servers}, {name} each way"
            own, peer = (us[key] * 1000 / PACKETS for key in (name, "lossless"))
            met = share >= target if target else None
            rows.append(Row(what, own, "lossless", peer, f">= {target} of its packets/s" if target else "", share, met))
    report(rows, args.json)


if __name__ == "__main__":
    main()
