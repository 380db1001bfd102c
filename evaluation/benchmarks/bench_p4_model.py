"""The P4 programs in the P4 model: the packet that completes a slot takes 8 passes up and 8 down."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _core_test import SlotOutcome, SlotPool
from ratio import Row, medians_us, report
from switch_lab.jobs import CODES_PER_PACKET, VALUE_BITS, Job
from switch_lab.lab import Lab
from switch_lab.targets.model import ModelTarget, tna, v1model

LIMIT_MS = 20
CODES = np.random.default_rng(1).integers(0, 16, CODES_PER_PACKET, dtype=np.uint8)


def of_model(target: ModelTarget) -> Callable[[], None]:
    """A job of one worker: each of its packets completes a slot. Every call is the next round."""
    job = Lab(target, [Job.make(1, 1, target.front_ports)]).job
    (worker,) = job.workers
    rounds = iter(range(1, 1 << 20))

    def packet() -> None:
        frame = bytes(job.codes(worker, CODES, round=next(rounds)))
        ((_, result),) = target.model.process(worker.switch_port, frame)
        assert len(result) > CODES_PER_PACKET

    return packet


def of_slot_pool() -> Callable[[], None]:
    """The same packet in thc_core."""
    job = Job.make(1, 1, [0])
    pool = SlotPool(
        job.table.array,
        bits=job.table.bits,
        slots=2,
        norm_slots=1,
        codes_per_packet=CODES_PER_PACKET,
        workers=1,
        quorum=1,
        value_bits=VALUE_BITS,
    )
    payload = (CODES[0::2] << 4 | CODES[1::2]).tobytes()
    packet = {"slot": 1, "worker": 0, "retransmit": False, "partition": 0, "chunk": 0, "count": CODES_PER_PACKET}
    rounds = iter(range(1, 1 << 20))

    def contribute() -> None:
        assert pool.contribute(round=next(rounds), payload=payload, **packet).outcome == SlotOutcome.COMPLETED

    return contribute


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=50)
    args = parser.parse_args()
    peer = "thc_core's slot state machine"
    calls = {"v1model": of_model(v1model()), "TNA, one pipe": of_model(tna(1)), "TNA, four pipes": of_model(tna(4))}
    us = medians_us({**calls, peer: of_slot_pool()}, args.repeats)
    rows = [
        Row(
            what=f"{name}: 1024 codes, 8 + 8 passes",
            own_us=us[name],
            peer=peer,
            peer_us=us[peer],
            target=f"<= {LIMIT_MS} ms",
            ratio=us[name] / us[peer],
            met=us[name] <= 1000 * LIMIT_MS,
        )
        for name in calls
    ]
    report(rows, args.json)


if __name__ == "__main__":
    main()
