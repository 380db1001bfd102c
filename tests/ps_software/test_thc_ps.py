"""The protocol of docs/protocol.md, spoken to the real program over loopback."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._scheme.wire.layout import ConfigField, ErrorReason, MessageType

if TYPE_CHECKING:
    from raw_worker import MakeWorker, Worker


@pytest.fixture
def trio(server: ParameterServer, make_worker: MakeWorker) -> list[Worker]:
    workers = [make_worker(server.address, i) for i in range(3)]
    for worker in workers:
        worker.join()
    return workers


@pytest.mark.parametrize("threads", [1, 3])
def test_aggregate_is_the_sum_of_table_values_in_every_slot(threads: int, make_worker: MakeWorker) -> None:
    table = [0, 1, 3, 4, 6, 8, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30]
    rng = random.Random(threads)
    with ParameterServer(["--threads", str(threads)]) as server:
        workers = [make_worker(server.address, i, table=table) for i in range(3)]
        for worker in workers:
            assert worker.join().shards == threads
        shape = workers[0].shape
        for slot in range(shape.norm_slots, shape.norm_slots + 8):
            for round in (1, 2, 3):
                codes = [[rng.randrange(16) for _ in range(63)] for _ in workers]
                for worker, own in zip(workers, codes, strict=True):
                    worker.send_codes(own, slot=slot, round=round)
                expected = bytes(sum(table[own[i]] for own in codes) for i in range(63))
                for worker in workers:
                    reply = worker.receive()
                    assert reply.header.message_type == MessageType.AGGREGATE
                    assert (reply.header.slot, reply.header.round) == (slot, round)
                    assert reply.header.contributions == 3
                    assert reply.header.worker_id == worker.base.worker_id
                    assert reply.payload == expected


def test_configuration_mismatch_names_the_field(server: ParameterServer, make_worker: MakeWorker) -> None:
    make_worker(server.address, 0).join()
    error = make_worker(server.address, 1, workers=4).say_hello().error
    assert (error.reason, error.field) == (ErrorReason.CONFIG_MISMATCH, ConfigField.NUM_WORKERS)
    error = make_worker(server.address, 1, table=[0, *range(2, 16), 20]).say_hello().error
    assert (error.reason, error.field) == (ErrorReason.CONFIG_MISMATCH, ConfigField.GRANULARITY)


def test_overflow_is_refused(server: ParameterServer, make_worker: MakeWorker) -> None:
    table = [*range(15), 86]
    assert make_worker(server.address, 0, table=table).say_hello().reason == ErrorReason.OVERFLOW
    assert make_worker(server.address, 0, table=table, value_bits=16).say_hello().welcome


def test_live_worker_id_is_not_taken_over(trio: list[Worker], server: ParameterServer, make_worker: MakeWorker) -> None:
    trio[1].send_codes([1])  # it was heard of just now
    error = make_worker(server.address, 1, nonce=77).say_hello().error
    assert (error.reason, error.worker_bitmap) == (ErrorReason.DUPLICATE_WORKER, 0b010)
    assert trio[1].receive().header.message_type == MessageType.PROBE
    trio[1].retransmit([1])
    assert trio[1].receive().reason == ErrorReason.INCOMPLETE, "the first process is still the worker"


def test_restarted_worker_starts_the_job_over(
    trio: list[Worker], server: ParameterServer, make_worker: MakeWorker
) -> None:
    newcomer = make_worker(server.address, 1, nonce=77)
    deadline = time.monotonic() + 20
    while (reply := newcomer.say_hello()).header.message_type == MessageType.ERROR:  # the process before is asked
        assert reply.reason == ErrorReason.DUPLICATE_WORKER
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert trio[1].receive().header.message_type == MessageType.PROBE
    trio[0].send_codes([1] * 32)
    assert trio[0].receive().reason == ErrorReason.STALE_EPOCH


def test_goodbye_of_all_frees_the_job(trio: list[Worker]) -> None:
    for worker in trio:
        worker.say_goodbye()
    trio[0].send_codes([1] * 32)
    assert trio[0].receive().reason == ErrorReason.UNKNOWN_JOB


def test_idle_job_expires(make_worker: MakeWorker) -> None:
    with ParameterServer(["--idle-timeout", "0.3"]) as server:
        worker = make_worker(server.address, 0)
        worker.join()
        worker.send_codes([1] * 32)
        assert any(reason_after(0.6, worker) == ErrorReason.UNKNOWN_JOB for _ in range(10))


def reason_after(silence_s: float, worker: Worker) -> ErrorReason:
    """The answer to another copy; a server that was not running meanwhile knows the job yet, as it comes to it now."""
    time.sleep(silence_s)
    worker.retransmit([1] * 32)
    return worker.receive().reason


def test_job_limits(make_worker: MakeWorker) -> None:
    with ParameterServer(["--max-jobs", "1", "--slots", "8"]) as server:
        assert make_worker(server.address, 0).join().slots == 8
        assert make_worker(server.address, 0, job=2).say_hello().reason == ErrorReason.TOO_MANY_JOBS
    with ParameterServer(["--max-memory", "1KiB"]) as server:
        assert make_worker(server.address, 0).say_hello().reason == ErrorReason.TOO_MANY_JOBS


def test_injected_faults_do_not_change_sums(make_worker: MakeWorker) -> None:
    faults = ["--faults", "drop=0.2,duplicate=0.2,reorder=0.1,seed=3"]
    with ParameterServer(faults) as server:
        pair = [make_worker(server.address, i, workers=2) for i in range(2)]
        for worker in pair:
            until_answered(worker)
        for round in range(1, 21):
            for worker in pair:
                worker.send_codes([round % 16, 7], round=round)
            assert results_of(pair, round) == [bytes([round % 16 * 2, 14])] * 2


def until_answered(worker: Worker) -> None:
    for _ in range(300):
        try:
            worker.join(timeout_s=0.1)
        except TimeoutError:
            continue
        return
    pytest.fail("no WELCOME")


def results_of(workers: list[Worker], round: int) -> list[bytes]:
    """Retransmit for all until all have a result: one may wait for what another lost."""
    results: dict[int, bytes] = {}
    for attempt in range(1000):
        worker = workers[attempt % len(workers)]
        if worker.base.worker_id in results:
            continue
        try:
            reply = worker.receive(0.02)
        except TimeoutError:
            worker.retransmit([round % 16, 7], round=round)
            continue
        if reply.header.message_type == MessageType.AGGREGATE and reply.header.round == round:
            results[worker.base.worker_id] = reply.payload
            if len(results) == len(workers):
                return [results[i] for i in range(len(workers))]
    pytest.fail(f"no result of round {round}")
