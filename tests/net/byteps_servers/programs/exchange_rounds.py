"""A worker that exchanges rounds of gradients through BytePS's servers.

Usage: exchange_rounds.py SETTINGS. SETTINGS is a JSON object: folder (for the report worker<N>.json), deadline_s, and
cases: a list of {config, coordinates, rounds, odd_seed, stall, die}, carried out one after the other:
  config: of ThcConfig. coordinates: of each partition. rounds: how many
  odd_seed: this worker only gives its config another seed
  stall: [worker, every nth round, seconds] that this worker sleeps in
  die: [worker, round] in which it ends itself like a crash
The report is a list, an entry per case: {"digests": SHA-256 of the averages of every round} or {"error", "message"}.
gradient_rounds.simulate computes the same digests without BytePS.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from gradient_rounds import Rounds, gradient

import byteps_thc.torch as bps
from byteps_thc import Compressor, ThcConfig
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.byteps_servers.transport import BytepsTransport, PartitionShape, prepare_environment
from byteps_thc._scheme.errors import ThcError


def run_case(case: dict[str, Any], worker: int, deadline_s: float) -> list[str]:
    config = ThcConfig(**case["config"])
    if case.get("odd_seed") == worker:
        config = config.model_copy(update={"seed": config.seed + 1})
    compressor = Compressor(config, workers=bps.size(), worker=worker)
    shapes = [PartitionShape(f"p{i}", *compressor.sizes(n)) for i, n in enumerate(case["coordinates"])]
    transport = BytepsTransport(
        compressor.resolved, shapes, worker=worker, recorder=StatsRecorder(), deadline_s=deadline_s
    )
    transfers = [transport.new_transfer(shape.name, shape.norms, shape.padded) for shape in shapes]
    rounds = Rounds(compressor, case["coordinates"])
    for number in range(case["rounds"]):
        misbehave(case, worker, number)
        partitions = rounds.measure([gradient(worker, number, n) for n in case["coordinates"]], number)
        for transfer, partition in zip(transfers, partitions, strict=True):
            transfer.send_norms(partition.norms)
        for transfer, partition in zip(transfers, partitions, strict=True):
            transfer.codes[:] = compressor.encode(partition, transfer.wait_norms())
            transfer.send_codes()
        for transfer in transfers:
            transfer.wait_sums()
        rounds.finish([transfer.aggregate()[0] for transfer in transfers])
        print(f"round {number}", flush=True)
    return rounds.digests


def misbehave(case: dict[str, Any], worker: int, number: int) -> None:
    if case.get("die") == [worker, number]:
        os.kill(os.getpid(), signal.SIGKILL)
    slow_worker, every, seconds = case.get("stall") or (-1, 1, 0)
    if worker == slow_worker and number % every == 0:
        time.sleep(seconds)


def main() -> None:
    settings = json.loads(sys.argv[1])
    workers = int(os.environ["DMLC_NUM_WORKER"])
    prepare_environment(ThcConfig(**settings["cases"][0]["config"]).resolve(workers))
    bps.init()
    bps.push_pull(torch.ones(1), name="start")  # the other worker may start much later: that is not of deadline_s
    report: list[dict[str, Any]] = []
    for case in settings["cases"]:
        try:
            report.append({"digests": run_case(case, bps.rank(), settings["deadline_s"])})
        except ThcError as error:
            report.append({"error": type(error).__name__, "message": str(error)})
    path = Path(settings["folder"]) / f"worker{bps.rank()}.json"
    path.write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
