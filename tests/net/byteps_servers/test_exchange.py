"""THC's sums over BytePS's own servers: real scheduler, servers and workers."""

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from byteps_lab import BytepsLab
from gradients import gradient_of
from server_oracle import ServerOracle

from byteps_thc import Compressor, ServerCodes
from byteps_thc._native import _core

pytestmark = pytest.mark.byteps

PROGRAM = Path(__file__).parent / "programs" / "exchange_rounds.py"
SIZES = [[5000], [20_001]]
WORKERS = 2
DEADLINE_S = 10.0  # of set-up, too, which takes seconds on a busy host

#: The back-to-back rounds; one worker stalls now and then, so that the other is as far ahead as it can be.
EIGHT_BITS: dict[str, Any] = {"codes": {"rotation_block": 1024}, "sizes": SIZES, "rounds": 600, "stall": [1, 50, 0.05]}
SIXTEEN_BITS: dict[str, Any] = {"codes": {"rotation_block": 1024, "granularity": 400}, "sizes": SIZES, "rounds": 30}
THREE_BITS: dict[str, Any] = {"codes": {"bits": 3, "rotation_block": 64}, "sizes": [[1000]], "rounds": 30}
DIFFERENT_SEEDS: dict[str, Any] = {"codes": {}, "sizes": [[5000]], "rounds": 1, "odd_seed": 1}


@dataclass(frozen=True)
class Job:
    """Results of a job of BytePS: a report from each worker, with an entry per case, and the servers' output."""

    reports: list[list[dict[str, Any]]]
    servers: str


def start(lab: BytepsLab, folder: Path, cases: list[dict[str, Any]], *, deadline_s: float) -> None:
    lab.start(PROGRAM, json.dumps({"folder": str(folder), "deadline_s": deadline_s, "cases": cases}))


def read_report(folder: Path, worker: int) -> list[dict[str, Any]]:
    report: list[dict[str, Any]] = json.loads((folder / f"worker{worker}.json").read_text(encoding="utf-8"))
    return report


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One job for several cases, one after the other: starting and ending BytePS takes seconds."""
    folder = tmp_path_factory.mktemp("job")
    # PS_KEY_LOG: the servers print every push that arrives, with its size.
    with BytepsLab(folder, workers=WORKERS, servers=2, environment={"PS_KEY_LOG": "1"}) as lab:
        start(lab, folder, [EIGHT_BITS, SIXTEEN_BITS, THREE_BITS, DIFFERENT_SEEDS], deadline_s=60)
        assert [worker.status for worker in lab.wait(deadline_s=110)] == [0] * WORKERS, lab.outputs()
        lab.wait_servers()
        reports = [read_report(folder, worker) for worker in range(WORKERS)]
        return Job(reports, lab.output("server0") + lab.output("server1"))


def digests_of(case: dict[str, Any]) -> list[str]:
    """Return digests of the averages of every round, by all workers' compressors in this process."""
    oracle, digests = ServerOracle(ServerCodes(**case["codes"]), WORKERS), []
    for step in range(case["rounds"]):
        digest = hashlib.sha256()
        for number in range(len(case["sizes"])):
            own = [gradient_of(case, rank=rank, step=step, number=number) for rank in range(WORKERS)]
            digest.update(oracle.average(own, name=f"p{number}", tensor=number, round=step))
        digests.append(digest.hexdigest())
    return digests


@pytest.mark.parametrize(("number", "case"), list(enumerate([EIGHT_BITS, SIXTEEN_BITS, THREE_BITS])))
def test_every_round_is_what_one_process_computes(job: Job, number: int, case: dict[str, Any]) -> None:
    expected = digests_of(case)
    for worker in range(WORKERS):
        digests = job.reports[worker][number]["digests"]
        assert not [i for i, (mine, right) in enumerate(zip(digests, expected, strict=True)) if mine != right]


def test_the_cases_have_the_widths_that_they_are_for() -> None:
    widths = [
        ServerCodes(**case["codes"]).resolve(WORKERS).value_bits for case in (EIGHT_BITS, SIXTEEN_BITS, THREE_BITS)
    ]
    assert widths == [8, 16, 8]


def test_codes_arrive_with_four_bits_a_coordinate(job: Job) -> None:
    arrived = Counter(int(size) for size in re.findall(r"push key=\d+\s+sender=\d+\s+size=(\d+)", job.servers))
    compressor = Compressor(ServerCodes(**EIGHT_BITS["codes"]), workers=WORKERS, worker=0)
    for (coordinates,) in SIZES:
        blocks, padded = compressor.sizes(coordinates)
        rounds = sum(case["rounds"] + 2 for case in (EIGHT_BITS, SIXTEEN_BITS))  # two rounds when an exchange is made
        assert arrived[_core.code_bytes(padded, 4)] == rounds * WORKERS
        assert arrived[padded] == 2 * WORKERS  # BytePS's own initialisation of the two uint8 tensors
        assert arrived[4 * padded] == 2 * WORKERS  # and of the two int32 tensors
        assert arrived[4 * WORKERS * blocks] > 0


def test_different_settings_are_an_error_on_all_workers(job: Job) -> None:
    for worker in range(WORKERS):
        refused = job.reports[worker][3]
        assert refused["error"] == "ConfigurationError"
        assert f"worker(s) {1 - worker}" in refused["message"]


def test_a_dead_worker_is_an_error_within_the_deadline(tmp_path: Path) -> None:
    rounds = {"codes": {}, "sizes": [[5000]], "rounds": 10, "die": [1, 5]}
    with BytepsLab(tmp_path, workers=WORKERS) as lab:
        start(lab, tmp_path, [rounds], deadline_s=DEADLINE_S)
        dead, survivor = lab.wait_worker(1), lab.wait_worker(0)
    assert dead.status != 0
    assert survivor.status == 0, survivor.output  # it ended, by itself and with the status of its program
    (outcome,) = read_report(tmp_path, 0)
    assert outcome["error"] == "DeadlineError"
    assert f"within {DEADLINE_S:g} s" in outcome["message"]


@pytest.mark.slow
def test_a_dead_server_is_an_error_within_the_deadline(tmp_path: Path) -> None:
    rounds = {"codes": {}, "sizes": [[5000]], "rounds": 100_000}
    with BytepsLab(tmp_path, workers=WORKERS) as lab:
        start(lab, tmp_path, [rounds], deadline_s=DEADLINE_S)
        lab.wait_for_output("worker0", "round 3")
        lab.kill("server0")
        survivors = lab.wait()
    assert [worker.status for worker in survivors] == [0] * WORKERS, survivors
    for worker in range(WORKERS):
        (outcome,) = read_report(tmp_path, worker)
        assert outcome["error"] == "DeadlineError"
