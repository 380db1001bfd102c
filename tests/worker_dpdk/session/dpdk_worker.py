"""One worker process of test_dpdk.py (EAL starts once per process): prints a hash of the aggregates it got."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

from byteps_thc.config import ThcConfig
from byteps_thc.session import DpdkConfig, FaultConfig, Session, Timeouts


def main() -> None:
    """Settings are the JSON object in the first argument."""
    settings = json.loads(sys.argv[1])
    digest = hashlib.sha256()
    with Session(
        [settings["server"]],
        job=1,
        worker=settings["worker"],
        workers=settings["workers"],
        config=ThcConfig(),
        backend=DpdkConfig(**settings["dpdk"]),
        faults=FaultConfig(**settings["faults"]) if settings["faults"] else None,
        timeouts=Timeouts(connect_s=20, operation_s=30),
    ) as session:
        random = np.random.default_rng(settings["worker"])
        codes = [random.integers(0, 256, count // 2, np.uint8) for count in settings["counts"]]
        handles = [session.push_pull(partition, None, packed) for partition, packed in enumerate(codes)]
        for handle in handles:
            result = session.wait(handle, 40)
            assert (result.contributions == settings["workers"]).all()
            digest.update(result.aggregate.tobytes())
        print(json.dumps({"digest": digest.hexdigest(), "counters": session.counters()}), flush=True)
        sys.stdin.readline()  # others may still ask for results; the server answers them, this end may go


if __name__ == "__main__":
    main()
