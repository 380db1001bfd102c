"""One worker process of test_dpdk.py (EAL starts once per process): prints a hash of the aggregates it got."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

from byteps_thc._net.session import DpdkConfig, FaultConfig, Session, Timeouts
from byteps_thc._scheme.config import ThcConfig


def main() -> None:
    """Settings are the JSON object in the first argument."""
    settings = json.loads(sys.argv[1])
    digest = hashlib.sha256()
    with Session(
        [settings["server"]],
        job=1,
        worker=settings["worker"],
        workers=settings["workers"],
        config=ThcConfig(codes_per_packet=settings["codes_per_packet"]),
        backend=DpdkConfig(**settings["dpdk"]),
        faults=FaultConfig(**settings["faults"]) if settings["faults"] else None,
        timeouts=Timeouts(connect_s=20, operation_s=30),
    ) as session:
        random = np.random.default_rng(settings["worker"])
        codes = [random.integers(0, 256, count // 2, np.uint8) for count in settings["counts"]]
        pushed = []
        for partition, packed in enumerate(codes):
            count = settings["counts"][partition]
            aggregate, contributions = session.new_aggregate(count), np.empty(session.chunks(count), np.uint8)
            pushed.append((session.push_codes(partition, packed, aggregate, contributions), aggregate, contributions))
        for operation, aggregate, contributions in pushed:
            session.wait(operation, 40)
            assert (contributions == settings["workers"]).all()
            digest.update(aggregate.tobytes())
        print(json.dumps({"digest": digest.hexdigest(), "counters": session.counters()}), flush=True)
        sys.stdin.readline()  # others may still ask for results; the server answers them, this end may go


if __name__ == "__main__":
    main()
