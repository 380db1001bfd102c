"""The P4 programs in the P4 model: the packet that completes a slot takes 8 passes up and 8 down."""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _core_test import SlotOutcome, SlotPool
from ratio import Row, medians_us, report

from byteps_thc._scheme.adding.tables import LookupTable
from thc_switch import Deployment, allocate, frames
from thc_switch.controls import plan
from thc_switch.limits import CODE_BITS, CODES_PER_PACKET, VALUE_BITS
from thc_switch.targets.model import new_switch_with_control
from thc_switch.wire import Header, MessageType

LIMIT_MS = 20
CODES = np.random.default_rng(1).integers(0, 16, CODES_PER_PACKET, dtype=np.uint8)
PAYLOAD = (CODES[0::2] << 4 | CODES[1::2]).tobytes()
WORKER_PORT, EPOCH, SLOTS = 1, 7, 64
#: The pipes' own recirculation ports.
RECIRCULATION = [{"port": 68 + 128 * pipe} for pipe in range(4)]


def of_model(architecture: str, pipes: int = 1) -> Callable[[], None]:
    """A job of one worker: each of its packets completes a slot. Every call is the next round."""
    worker = {"ip": "10.0.0.1", "mac": "02:00:00:00:00:01", "udp_port": 50001, "port": WORKER_PORT}
    switch = {"architecture": architecture, "ip": "10.0.0.254", "mac": "02:00:00:00:00:fe", "cpu_port": 64}
    switch |= {"recirculation": RECIRCULATION[:pipes]}
    deployment = Deployment(switch=switch, jobs=[{"job_id": 1, "slots": SLOTS, "workers": [worker]}])
    [allocation] = allocate(deployment)
    model, control = new_switch_with_control(deployment.switch)
    control.install(plan(deployment))
    control.open_job(allocation, EPOCH, SLOTS)
    to_worker = frames.to_station(deployment.switch, deployment.jobs[0].workers[0], b"")
    rounds = iter(range(1, 1 << 20))

    def packet() -> None:
        header = Header(
            message_type=MessageType.CODES,
            code_bits=CODE_BITS,
            value_bits=VALUE_BITS,
            num_workers=1,
            job_id=1,
            payload_count=CODES_PER_PACKET,
            epoch=EPOCH,
            round=next(rounds),
            slot=SLOTS - 1,
        )
        frame = frames.build(to_worker.answer(header.pack() + PAYLOAD))
        ((_, result),) = model.process(WORKER_PORT, frame)
        assert len(result) > CODES_PER_PACKET

    return packet


def of_slot_pool() -> Callable[[], None]:
    """The same packet in thc_core."""
    table = LookupTable.paper()
    pool = SlotPool(
        table.array,
        bits=table.bits,
        slots=2,
        norm_slots=1,
        codes_per_packet=CODES_PER_PACKET,
        workers=1,
        quorum=1,
        value_bits=VALUE_BITS,
    )
    packet = {"slot": 1, "worker": 0, "retransmit": False, "partition": 0, "chunk": 0, "count": CODES_PER_PACKET}
    rounds = iter(range(1, 1 << 20))

    def contribute() -> None:
        assert pool.contribute(round=next(rounds), payload=PAYLOAD, **packet).outcome == SlotOutcome.COMPLETED

    return contribute


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=50)
    args = parser.parse_args()
    peer = "thc_core's slot state machine"
    calls = {"v1model": of_model("v1model"), "TNA, one pipe": of_model("tofino1")}
    calls["TNA, four pipes"] = of_model("tofino1", pipes=4)
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
