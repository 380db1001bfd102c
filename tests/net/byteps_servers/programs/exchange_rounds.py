"""A worker that exchanges rounds of gradients through BytePS's servers.

Usage: exchange_rounds.py SETTINGS. SETTINGS is a JSON object: folder (for the report worker<N>.json), deadline_s, and
cases: a list of {codes (ServerCodes), sizes of each partition (gradients.py), rounds, odd_seed, stall, die}, in order:
  odd_seed: this worker only gives its codes another seed
  stall: [worker, every nth round, seconds] that this worker sleeps in
  die: [worker, round] in which it ends itself like a crash
The report has for each case {"digests": SHA-256 of each round's averages} or {"error", "message"}.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gradients import gradient_of

import byteps_thc.torch as bps
from byteps_thc import Compressor, ServerCodes
from byteps_thc._base.arrays import everybody
from byteps_thc._base.errors import ThcError
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.byteps_servers.transport import BytepsTransport, PartitionShape, prepare_environment


def run_case(case: dict[str, Any], worker: int, deadline_s: float) -> list[str]:
    codes = ServerCodes(**case["codes"])
    if case.get("odd_seed") == worker:
        codes = codes.model_copy(update={"seed": codes.seed + 1})
    compressor = Compressor(codes, workers=bps.size(), worker=worker)
    coordinates = [sum(sizes) for sizes in case["sizes"]]
    shapes = [PartitionShape(f"p{i}", *compressor.sizes(n)) for i, n in enumerate(coordinates)]
    transport = BytepsTransport(
        compressor.resolved, shapes, worker=worker, recorder=StatsRecorder(), deadline_s=deadline_s
    )
    transfers = [transport.new_transfer(shape.name, shape.norms, shape.padded) for shape in shapes]
    partitions = [compressor.partition(f"p{i}", n, tensor=i) for i, n in enumerate(coordinates)]
    averages = [np.zeros(n, np.float32) for n in coordinates]
    digests = []
    for number in range(case["rounds"]):
        misbehave(case, worker, number)
        for i, (transfer, partition) in enumerate(zip(transfers, partitions, strict=True)):
            transfer.send_norms(
                compressor.measure(partition, gradient_of(case, rank=worker, step=number, number=i), round=number)
            )
        for transfer, partition in zip(transfers, partitions, strict=True):
            transfer.codes[:] = compressor.encode(partition, transfer.wait_norms())
            transfer.send_codes()
        for transfer in transfers:
            transfer.wait_sums()
        digest = hashlib.sha256()
        for transfer, partition, average in zip(transfers, partitions, averages, strict=True):
            compressor.decode(partition, transfer.aggregate()[0], everybody(bps.size()), average)
            digest.update(average)
        digests.append(digest.hexdigest())
        print(f"round {number}", flush=True)
    return digests


def misbehave(case: dict[str, Any], worker: int, number: int) -> None:
    if case.get("die") == [worker, number]:
        os.kill(os.getpid(), signal.SIGKILL)
    slow_worker, every, seconds = case.get("stall") or (-1, 1, 0)
    if worker == slow_worker and number % every == 0:
        time.sleep(seconds)


def main() -> None:
    settings = json.loads(sys.argv[1])
    prepare_environment(ServerCodes(**settings["cases"][0]["codes"]).resolve(int(os.environ["DMLC_NUM_WORKER"])))
    bps.init()
    bps.push_pull(torch.ones(1), name="start")  # the other worker may start much later: that is not of deadline_s
    report: list[dict[str, Any]] = []
    for case in settings["cases"]:
        try:
            report.append({"digests": run_case(case, bps.rank(), settings["deadline_s"])})
        except ThcError as error:
            report.append({"error": type(error).__name__, "message": str(error)})
    (Path(settings["folder"]) / f"worker{bps.rank()}.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
