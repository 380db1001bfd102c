"""Packets of real runs under faults, checked by the rules of the model; and spoiled traces, which they refuse."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from pushed_codes import push_codes
from slot_monitor import ProtocolViolationError, SlotMonitor
from switch_lab.jobs import Job
from switch_lab.lab import Lab, Outcome, datagram_of
from switch_lab.simulation import Faults, Simulation
from switch_lab.targets.model import v1model
from udp_relay import RelayFaults, UdpRelay

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import FaultConfig, Session, Timeouts, UdpConfig
from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.wire.layout import Flag, Header, MessageType

WORKERS = 3
FAULTS = RelayFaults(drop=0.05, duplicate=0.05, reorder=0.1)
COUNT = 20_000
#: small packets, so that there are many
CONFIG = ThcConfig(codes_per_packet=1024)
Trace = list[tuple[bool, bytes]]


def push(session: Session, worker: int, steps: int) -> None:
    random = np.random.default_rng(worker)
    for _ in range(steps):
        norms = random.random(100, np.float32)
        session.wait(session.push_norms(0, norms, np.empty_like(norms)), 100)
        push_codes(session, 1, random.integers(0, 256, COUNT // 2, np.uint8)).wait(100)


def run_sessions(*, quorum: int | None = None, loss_tolerant: bool = False, steps: int = 3) -> Trace:
    """What workers and thc-ps said to each other through a bad network."""
    trace: Trace = []
    with (
        ParameterServer(["--slots", "16"]) as server,
        UdpRelay(server.address, FAULTS, observe=lambda is_up, datagram: trace.append((is_up, datagram))) as relay,
        ExitStack() as stack,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        sessions = [
            stack.enter_context(
                Session(
                    [relay.address],
                    job=1,
                    worker=worker,
                    workers=WORKERS,
                    config=CONFIG,
                    quorum=quorum,
                    loss_tolerant=loss_tolerant,
                    timeouts=Timeouts(connect_s=60),
                    backend=UdpConfig(local="127.0.0.1:0"),
                    faults=FaultConfig(drop=0.02, duplicate=0.02, reorder=0.02),
                )
            )
            for worker in range(WORKERS)
        ]
        for future in [pool.submit(push, session, worker, steps) for worker, session in enumerate(sessions)]:
            future.result()
        assert relay.failure is None
    return trace


def check(trace: Trace, quorum: int | None = None) -> SlotMonitor:
    monitor = SlotMonitor(CONFIG.resolve(WORKERS).table, workers=WORKERS, quorum=quorum)
    for is_up, datagram in trace:
        (monitor.up if is_up else monitor.down)(datagram)
    return monitor


@pytest.fixture(scope="module")
def reliable_trace() -> Trace:
    return run_sessions()


def test_reliable_sessions(reliable_trace):
    checked = check(reliable_trace).checked
    chunks = -(-COUNT // 1024)
    assert checked["aggregate"] >= 3 * chunks
    assert checked["max_norm"] > 0
    assert checked["straggler"] == 0


def test_quorum():
    trace = run_sessions(quorum=2, steps=6)
    assert check(trace, quorum=2).checked["aggregate"] > 0
    with pytest.raises(ProtocolViolationError, match="contributions, quorum"):
        check(trace)  # as if all had to contribute


def test_loss_tolerant_sessions():
    assert check(run_sessions(loss_tolerant=True)).checked["aggregate"] > 0


class WatchedLab(Lab):
    """Shows a monitor what goes in and out of the aggregator."""

    monitor: SlotMonitor

    def send_raw(self, worker, frame) -> Outcome:
        self.monitor.up(datagram_of(frame))
        outcome = super().send_raw(worker, frame)
        for reply in outcome.replies:
            self.monitor.down(bytes(reply.thc))
        return outcome


@pytest.mark.parametrize("quorum", [3, 2])
def test_the_switch_in_the_p4_model(quorum):
    target = v1model()
    lab = WatchedLab(target, [Job.make(1, WORKERS, target.front_ports, quorum=quorum, slots=4)])
    lab.monitor = SlotMonitor(lab.job.table, workers=WORKERS, quorum=quorum)
    Simulation(lab, seed=quorum, chunks=6, faults=Faults(loss=0.1, delay=0.1)).run()
    assert lab.monitor.checked["aggregate"] >= 6
    target.close()


def first(trace: Trace, kind: MessageType) -> int:
    return next(i for i, (_, datagram) in enumerate(trace) if datagram[1] == kind)


def test_a_wrong_sum_is_refused(reliable_trace):
    at = first(reliable_trace, MessageType.AGGREGATE)
    spoiled = bytearray(reliable_trace[at][1])
    spoiled[-1] ^= 1
    with pytest.raises(ProtocolViolationError, match="not what 3 of workers"):
        check([*reliable_trace[:at], (False, bytes(spoiled)), *reliable_trace[at + 1 :]])


def test_a_missing_contribution_is_refused(reliable_trace):
    at = first(reliable_trace, MessageType.AGGREGATE)
    result = Header.unpack(reliable_trace[at][1])

    def is_left_out(entry: tuple[bool, bytes]) -> bool:
        header = Header.unpack(entry[1])
        if header.message_type == MessageType.ERROR:  # it names worker 1, too, and might come first
            return True
        same = (header.slot, header.round, header.worker_id) == (result.slot, result.round, 1)
        return entry[0] and same and header.message_type == MessageType.CODES

    with pytest.raises(ProtocolViolationError, match=r"of workers \[0, 2\] sent"):
        check([entry for entry in reliable_trace if not is_left_out(entry)])


def test_a_sum_with_codes_that_abstain_is_refused(reliable_trace):
    at = first(reliable_trace, MessageType.AGGREGATE)
    result = Header.unpack(reliable_trace[at][1])

    def abstains(entry: tuple[bool, bytes]) -> tuple[bool, bytes]:
        header = Header.unpack(entry[1])
        same = (header.slot, header.round, header.worker_id) == (result.slot, result.round, 1)
        if not (entry[0] and same and header.message_type == MessageType.CODES):
            return entry
        return True, replace(header, flags=header.flags | Flag.ABSTAIN).pack() + entry[1][Header.SIZE_BYTES :]

    before = [entry for entry in reliable_trace[: at + 1] if Header.unpack(entry[1]).message_type != MessageType.ERROR]
    with pytest.raises(ProtocolViolationError, match=r"of workers \[0, 2\] sent"):
        check([abstains(entry) for entry in before])


def test_a_result_of_another_round_is_refused(reliable_trace):
    at = first(reliable_trace, MessageType.AGGREGATE)
    datagram = bytearray(reliable_trace[at][1])
    datagram[16:20] = (Header.unpack(datagram).round + 1).to_bytes(4, "big")
    with pytest.raises(ProtocolViolationError):
        check([*reliable_trace[: at + 1], (False, bytes(datagram))])


def test_a_straggler_without_a_later_round_is_refused(reliable_trace):
    at = first(reliable_trace, MessageType.AGGREGATE)
    datagram = bytearray(reliable_trace[at][1][: Header.SIZE_BYTES])
    datagram[1] = MessageType.STRAGGLER
    with pytest.raises(ProtocolViolationError, match="nobody was past"):
        check([*reliable_trace[: at + 1], (False, bytes(datagram))])
