"""Every packet ends for one reason, and the slots count theirs."""

from collections import Counter

import numpy as np
import pytest
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw
from switch_lab.jobs import CODES_PER_PACKET, NORMS_PER_PACKET, SERVICE_IP, Job
from switch_lab.lab import Lab
from switch_lab.simulation import Faults, Simulation
from switch_lab.targets.switch import STATION_MACS, SwitchTarget

from thc_switch.controls import SlotCheck

CODES = np.random.default_rng(0).integers(0, 16, (4, CODES_PER_PACKET), dtype=np.uint8)


def counted(before: dict[str, int], after: dict[str, int]) -> Counter[str]:
    """Return counts in between; packets on their way to the home pipe are counted there again."""
    return Counter({name: after[name] - before[name] for name in after if name != "to_home_pipe"})


def test_a_schedule_is_counted_as_the_reference_has_it(switch: SwitchTarget):
    jobs = [Job.make(1, 4, switch.front_ports, slots=5), Job.make(2, 3, switch.front_ports, quorum=2, slots=4)]
    lab = Lab(switch, jobs)
    before = switch.status()
    Simulation(lab, seed=7, chunks=12, faults=Faults(loss=0.1, delay=0.1)).run()
    after = switch.status()
    assert +counted(before.reasons, after.reasons) == lab.reasons
    for then, now in zip(before.jobs, after.jobs, strict=True):
        assert now.epoch == then.epoch
        assert now.slots_used > then.slots_used
    admitted = sum(now.packets - then.packets for then, now in zip(before.jobs, after.jobs, strict=True))
    assert admitted == sum(lab.reasons.values())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": 1}, "malformed"),
        ({"switch_pass": 1}, "spoofed"),
        ({"worker_id": 0}, "unknown_worker"),
        ({"job_id": 9}, "unknown_job"),
        ({"partition": 3}, "order_mismatch"),
        ({"message_type": 9}, "to_cpu"),
    ],
    ids=str,
)
def test_reasons(switch: SwitchTarget, fields, reason):
    lab = Lab(switch, [Job.make(1, 4, switch.front_ports)])
    job = lab.job
    lab.send(job.codes(job.workers[0], CODES[0]))
    before = switch.status().reasons
    worker = job.workers[1]
    switch.exchange(worker.switch_port, bytes(job.codes(worker, CODES[1], **fields)))
    assert +counted(before, switch.status().reasons) == Counter([reason])


def test_reasons_of_other_traffic(switch: SwitchTarget):
    Lab(switch, [Job.make(1, 4, switch.front_ports)])
    port = switch.front_ports[0]
    bridged = Ether(src=STATION_MACS[0], dst=STATION_MACS[1]) / Raw(bytes(46))
    request = Ether(src=STATION_MACS[0], dst="ff:ff:ff:ff:ff:ff") / ARP(psrc="10.0.1.9", pdst=SERVICE_IP)
    for frame, reason in ((bridged, "forwarded"), (request, "arp")):
        before = switch.status().reasons
        switch.exchange(port, bytes(frame))
        assert +counted(before, switch.status().reasons) == Counter([reason])


def test_slots_count_their_packets(switch: SwitchTarget):
    """All NORM and CODES that pass the checks count, by the slot's index on the switch."""
    lab = Lab(switch, [Job.make(job, 2, switch.front_ports, slots=slots) for job, slots in ((1, 5), (2, 6))])

    def slot_packets() -> np.ndarray:
        return np.array(switch.control.read_counter(SlotCheck.full_name("slot_packets"), 0, 11))

    before = slot_packets()
    second = lab.jobs[1]
    for worker in second.workers:
        lab.send(second.codes(worker, CODES[0], slot=3))
    lab.send(second.codes(second.workers[0], CODES[0], slot=3, retransmit=True))
    lab.send(second.norms(second.workers[0], np.ones(NORMS_PER_PACKET, np.float32), slot=0))
    lab.send(second.codes(second.workers[0], CODES[0], slot=4, epoch=1))
    assert (slot_packets() - before).tolist() == [0] * 5 + [1, 0, 0, 3, 0, 0]
