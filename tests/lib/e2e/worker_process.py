"""A worker of the end-to-end tests: pushes random norms and codes, and reports the results.

Usage: worker_process.py SETTINGS PIPE_FD. SETTINGS is a JSON object: server, job, worker, workers, thc (ServerCodes),
counts (codes of each partition), steps, pause_after (a step or null: wait for a message then), backend ("udp" or "dpdk"
with its settings), faults (of packet_faults), timeouts. Through the pipe it
sends {"step": n} after every step, at last {"digest": ..., "counters": ...} or {"error": class, "message": ...,
"missing_workers": [...]}. Then it waits for a message: leaving a job ends it for workers that are behind.
"""

import hashlib
import json
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from byteps_thc._base.errors import ThcError
from byteps_thc._net.session import DpdkConfig, Session, Timeouts, UdpConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.packet_faults import packet_faults


def push(session: Session, settings: dict[str, Any], pipe: Connection) -> str:
    """Hash of all maximum norms, aggregates and contributions, in order."""
    random = np.random.default_rng(settings["worker"])
    digest = hashlib.sha256()
    for step in range(settings["steps"]):
        rounds = []
        for partition, count in enumerate(settings["counts"]):
            norms = random.random(1 + count // 500, np.float32)
            codes = random.integers(0, 256, -(-count // 2), np.uint8)
            max_norms = np.empty_like(norms)
            rounds.append((session.push_norms(partition, norms, max_norms), max_norms, partition, codes, count))
        for stage, max_norms, partition, codes, count in rounds:
            session.wait(stage)
            aggregate, contributions = session.new_aggregate(count), np.empty(session.chunks(count), np.uint8)
            session.wait(session.push_codes(partition, codes, aggregate, contributions))
            for array in (max_norms, aggregate, contributions):
                digest.update(array.tobytes())
        pipe.send({"step": step})
        if step == settings["pause_after"]:
            pipe.recv()
    return digest.hexdigest()


def main() -> None:
    settings, pipe = json.loads(sys.argv[1]), Connection(int(sys.argv[2]))
    backends = {"udp": UdpConfig, "dpdk": DpdkConfig}
    kind, backend = next(iter(settings["backend"].items()))
    try:
        with (
            packet_faults(**settings["faults"]),
            Session(
                [settings["server"]],
                job=settings["job"],
                worker=settings["worker"],
                workers=settings["workers"],
                codes=ServerCodes(**settings["thc"]),
                backend=backends[kind](**backend),
                timeouts=Timeouts(**settings["timeouts"]),
            ) as session,
        ):
            pipe.send({"digest": push(session, settings, pipe), "counters": session.counters()})
            pipe.recv()
    except ThcError as error:
        missing = list(getattr(error, "missing_workers", ()))
        pipe.send({"error": type(error).__name__, "message": str(error), "missing_workers": missing})


if __name__ == "__main__":
    main()
