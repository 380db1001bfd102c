"""Who has no place in a job cannot find out its epochs, add to its sums, or make the server send to others.

127.0.0.x are the hosts. A source address is spoofed by a socket that is bound to it and never read.
"""

from __future__ import annotations

import os
import select
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from raw_worker import Worker

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._scheme.wire.layout import Header, MessageType

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
