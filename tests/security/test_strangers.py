"""Who has no place in a job cannot find out its epochs, add to its sums, or make the server send to others.

127.0.0.x are the hosts. A source address is spoofed by a socket that is bound to it and never read.
"""

from __future__ import annotations

import os
import select
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from raw_worker import Worker

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._scheme.wire.layout import ErrorReason, Header, MessageType

if TYPE_CHECKING:
    from raw_worker import MakeWorker

ATTACKER_IP, VICTIM_IP = "127.0.0.66", "127.0.0.77"
#: how long to listen before silence is believed
SILENCE_S = 0.3


def forge(attacker: Worker, worker: Worker, epoch: int, codes: list[int]) -> None:
    """CODES as if from `worker`, from the attacker's address."""
    attacker.base = worker.base
    attacker.shape = worker.shape
    attacker.epochs = {0: epoch}
    attacker.send_codes(codes)


def received(attacker: Worker) -> list[tuple[int, bytes]]:
    """Types and payloads of what came within some time."""
    answers = []
    deadline = time.monotonic() + SILENCE_S
    while select.select([attacker.socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
        data = attacker.socket.recv(65536)
        answers.append((Header.unpack(data).message_type, data[Header.SIZE_BYTES :]))
    return answers


@pytest.mark.parametrize("joined", [2, 1], ids=["place_taken", "place_free"])
def test_a_right_epoch_is_answered_as_a_wrong_one(
    server: ParameterServer, make_worker: MakeWorker, joined: int
) -> None:
    workers = [make_worker(server.address, i, workers=2) for i in range(2)]
    for worker in workers[:joined]:
        worker.join()
    epoch, shape = workers[0].epochs[0], workers[0].shape
    workers[1].shape = shape
    answers = []
    for guess in (epoch, epoch ^ 1, epoch ^ (1 << 31)):
        attacker = make_worker(server.address, 1, workers=2, source_ip=ATTACKER_IP)
        forge(attacker, workers[1], guess, [15] * 64)
        attacker.send(replace(attacker.base, message_type=MessageType.GOODBYE, epoch=guess))
        attacker.send(replace(attacker.base, message_type=MessageType.ALIVE, epoch=guess))
        answers.append(received(attacker))
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) == (0 if joined == 2 else 1)


def test_forged_packets_never_count(server: ParameterServer, make_worker: MakeWorker) -> None:
    workers = [make_worker(server.address, i, workers=2) for i in range(2)]
    for worker in workers:
        worker.join()
    attacker = make_worker(server.address, 1, workers=2, source_ip=ATTACKER_IP)
    workers[0].send_codes([1] * 64)
    forge(attacker, workers[1], workers[1].epochs[0], [15] * 64)
    attacker.send(replace(attacker.base, message_type=MessageType.GOODBYE, epoch=workers[1].epochs[0]))
    attacker.send_norms([1e30])
    assert received(attacker) == []
    workers[1].send_codes([2] * 64)
    assert [worker.receive().payload for worker in workers] == [bytes([3] * 64)] * 2


def bytes_at(victims: list[Worker]) -> int:
    time.sleep(SILENCE_S)
    total = 0
    for victim in victims:
        victim.socket.setblocking(False)
        while True:
            try:
                total += len(victim.socket.recv(65536))
            except BlockingIOError:
                break
    return total


def test_spoofed_workers_are_sent_no_results(server: ParameterServer, make_worker: MakeWorker) -> None:
    """63 of 64 workers at the victim's address, and a quorum of 1: every packet would have 63 answers."""
    attacker = make_worker(server.address, 0, workers=64, quorum=1, value_bits=16, source_ip=ATTACKER_IP)
    attacker.join()
    sent_bytes, victims = 0, []
    for i in range(1, 64):
        victim = make_worker(server.address, i, workers=64, quorum=1, value_bits=16, source_ip=VICTIM_IP)
        victim.send_hello()
        victim.send_hello(cookie=12345)
        sent_bytes += 2 * victim.hello_bytes
        victims.append(victim)
    for round_ in range(1, 51):
        attacker.send_codes([1] * 64, round=round_)
        assert attacker.receive().header.message_type == MessageType.AGGREGATE
    assert 0 < bytes_at(victims) <= sent_bytes


@pytest.mark.parametrize("exists", [False, True])
def test_contributions_from_nowhere_are_no_lever(
    server: ParameterServer, make_worker: MakeWorker, exists: bool
) -> None:
    """The smallest contributions there are, from an address that never answers."""
    if exists:
        make_worker(server.address, 0, workers=2).join()
    victim = make_worker(server.address, 1, workers=2, source_ip=VICTIM_IP)
    victim.epochs = {0: 7}
    sent_bytes = 0
    for _ in range(200):
        victim.send_norms([1.0])
        sent_bytes += Header.SIZE_BYTES + 4
    assert bytes_at([victim]) <= sent_bytes


def test_a_source_that_never_answers_holds_no_job(make_worker: MakeWorker) -> None:
    with ParameterServer(["--max-jobs", "2"], stop_timeout_s=0.5) as server:
        for job in range(10, 30):
            make_worker(server.address, 0, workers=1, job=job, source_ip=VICTIM_IP).send_hello()
        for job in (1, 2):
            owner = make_worker(server.address, 0, workers=1, job=job, source_ip=f"127.0.0.{job}")
            assert owner.join().slots > 0


def test_one_address_does_not_take_all_jobs(make_worker: MakeWorker) -> None:
    with ParameterServer(["--max-jobs", "4"], stop_timeout_s=0.5) as server:
        taken = [
            make_worker(server.address, 0, workers=1, job=job, source_ip=ATTACKER_IP).say_hello() for job in range(4)
        ]
        kinds = [reply.header.message_type for reply in taken]
        assert kinds == [MessageType.WELCOME] * 2 + [MessageType.ERROR] * 2
        assert taken[2].reason == ErrorReason.TOO_MANY_JOBS
        assert make_worker(server.address, 0, workers=1, job=9).join().slots > 0


def cpu_time_s(pid: int) -> float:
    """Seconds that all threads of a process have run."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_starting_and_ending_large_jobs_costs_little(server: ParameterServer, make_worker: MakeWorker) -> None:
    """40 jobs of 64 MB each: that was over 20 ms of a core for each."""
    churner = make_worker(
        server.address, 0, workers=1, value_bits=16, codes_per_packet=30_000, slots=512, source_ip=ATTACKER_IP
    )
    churner.join()
    churner.say_goodbye()
    before_s = cpu_time_s(server.process.pid)
    for _ in range(40):
        assert churner.join().slots == 512
        churner.say_goodbye()
    assert cpu_time_s(server.process.pid) - before_s < 0.4


def test_a_flood_of_hellos_does_not_keep_workers_out(server: ParameterServer, make_worker: MakeWorker) -> None:
    flood = make_worker(server.address, 0, workers=1, job=9, source_ip=VICTIM_IP)
    for _ in range(5000):
        flood.send_hello()
    worker = make_worker(server.address, 0, workers=1, job=1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            worker.join(timeout_s=0.2)
            break
        except TimeoutError:  # in the kernel's buffer, or over the budget of this tenth of a second
            continue
    assert worker.epochs


def test_nothing_but_datagrams_of_workers_opens_a_place(server: ParameterServer) -> None:
    """Every short message type from a stranger, of a job that is not there: at most as many bytes come back."""
    ip, port = server.address.split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind((ATTACKER_IP, 0))
        stranger.settimeout(SILENCE_S)
        sent = 0
        for kind in range(256):
            header = Header(message_type=kind, code_bits=4, value_bits=8, num_workers=2, payload_count=1)
            sent += stranger.sendto(header.pack() + bytes(1), (ip, int(port)))
        got = 0
        while True:
            try:
                got += len(stranger.recv(65536))
            except TimeoutError:
                break
    assert got <= sent
