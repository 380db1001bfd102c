"""Rounds are 32-bit serial numbers: recorded packets of a job with a key must not fit when the numbers come again."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from datagram_tags import TAG_BYTES, tag
from joined_sessions import check_sums, sessions, sessions_at
from raw_worker import TIMEOUT_S, Reply, Worker
from typing_extensions import override

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.packet_faults import packet_faults
from thc_lab.rack_servers import RackServers
from thc_switch.wire import ErrorReason, MessageType

KEY = bytes(range(32))
#: as many as one epoch of a job with a key has
ROUNDS_PER_EPOCH = 1 << 30
FEW_ROUNDS = ["--faults", "rounds-per-epoch=3"]


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(KEY.hex())
    return str(path)


class KeyedWorker(Worker):
    """A worker of a job with KEY, whose datagrams somebody records."""

    recording: bytes = b""

    @override
    def send_bytes(self, datagram: bytes, shard: int = 0) -> None:
        self.recording = datagram + tag(KEY, datagram, up=True)
        super().send_bytes(self.recording, shard)

    @override
    def receive(self, timeout_s: float = TIMEOUT_S) -> Reply:
        reply = super().receive(timeout_s)
        return Reply(reply.header, reply.payload[:-TAG_BYTES])

    def take(self, code: int, round: int) -> bytes | None:
        """Return the sum of a round for which it has sent this code, or None; resume in a new epoch if told to."""
        try:
            reply = self.receive(0.05)
        except TimeoutError:
            return None
        is_error = reply.header.message_type == MessageType.ERROR and reply.header.epoch == self.epochs[0]
        if is_error and reply.reason == ErrorReason.NEW_EPOCH:
            self.epochs[0] = reply.error.job_value
            self.retransmit([code] * 8, round=round)
        is_result = reply.header.message_type == MessageType.AGGREGATE and reply.header.round == round
        return reply.payload if is_result else None


@pytest.fixture
def pair(key_file: str) -> Iterator[list[KeyedWorker]]:
    with ParameterServer(["--key-file", key_file]) as server:
        workers = [KeyedWorker(server.address, i, workers=2) for i in range(2)]
        for worker in workers:
            worker.join()
        yield workers
        for worker in workers:
            worker.close()


def complete(workers: list[KeyedWorker], code: int, round: int) -> None:
    for worker in workers:
        worker.send_codes([code] * 8, round=round)
    for sums in results(workers, code, round):
        assert sums == bytes([2 * code] * 8)


def results(workers: list[KeyedWorker], code: int, round: int) -> list[bytes]:
    taken: dict[KeyedWorker, bytes] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while len(taken) < len(workers):
        assert time.monotonic() < deadline
        for worker in workers:
            if worker not in taken and (sums := worker.take(code, round)) is not None:
                taken[worker] = sums
    return [taken[worker] for worker in workers]


def test_a_recording_does_not_fit_when_rounds_come_again(pair: list[KeyedWorker]) -> None:
    complete(pair, 1, 5)
    pair[0].send_codes([9] * 8, round=6)
    recording = pair[0].recording
    pair[1].send_codes([9] * 8, round=6)
    assert results(pair, 9, 6) == [bytes([18] * 8)] * 2
    first_epoch = pair[0].epochs[0]
    for quarter in range(1, 5):  # once around
        last = 5 + quarter * ROUNDS_PER_EPOCH
        complete(pair, 2, (last - 1) % (1 << 32))
        complete(pair, 2, last % (1 << 32))
    Worker.send_bytes(pair[0], recording)  # the attacker knows worker 0's address, too
    for worker in pair:
        worker.send_codes([3] * 8, round=6)
    assert results(pair, 3, 6) == [bytes([6] * 8)] * 2, "not worker 0's contribution of days ago"
    assert pair[0].epochs[0] != first_epoch


@pytest.mark.parametrize("threads", ["1", "2"])
def test_new_epochs_change_no_sum(key_file: str, threads: str) -> None:
    """Losses, copies and late packets surround each new epoch."""
    arguments = ["--key-file", key_file, "--threads", threads, "--slots", "32", *FEW_ROUNDS]
    config = ServerCodes(codes_per_packet=64)
    with ParameterServer(arguments) as server, ExitStack() as stack:
        with packet_faults(drop=0.02, duplicate=0.02, reorder=0.02):
            joined = sessions(stack, [server.address], 3, config, key=KEY)
        check_sums(joined, config, [5000, 1, 20_000], steps=3)
        for session in joined:
            counters = session.counters()
            assert counters["new_epochs"] > 5
            assert counters["rejoins"] == 0


def test_racks_live_through_new_epochs(key_file: str) -> None:
    """Root and leaves have epochs of their own."""
    config = ServerCodes(codes_per_packet=64)
    with RackServers([2, 1], ["--key-file", key_file, "--slots", "16", *FEW_ROUNDS]) as racks, ExitStack() as stack:
        joined = sessions_at(stack, [[racks.address_of(worker)] for worker in range(3)], config, key=KEY)
        check_sums(joined, config, [5000, 1, 10_000], steps=2)
        assert all(session.counters()["new_epochs"] > 5 for session in joined)
