"""Sessions of all workers of a job in one process, and exact sums through them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import _core_test
import numpy as np
import numpy.typing as npt
from pushed_codes import push_codes

from byteps_thc._native import _core
from byteps_thc._net.session import Session, UdpConfig
from byteps_thc._scheme.config import ThcConfig

LOOPBACK = UdpConfig(local="127.0.0.1:0")

#: a number for each job on the servers of these tests
next_job = iter(range(1, 1 << 16))


def sessions(
    stack: ExitStack, servers: list[str], workers: int, config: ThcConfig | None = None, **settings: object
) -> list[Session]:
    """Join all workers to a new job."""
    job = next(next_job)
    return [
        stack.enter_context(
            Session(
                servers,
                job=job,
                worker=worker,
                workers=workers,
                config=config or ThcConfig(),
                backend=LOOPBACK,
                **settings,  # type: ignore[arg-type]
            )
        )
        for worker in range(workers)
    ]


def in_parallel(calls: list[Callable[[], object]]) -> list[object]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def make_codes(config: ThcConfig, counts: list[int], seed: int) -> list[npt.NDArray[np.uint8]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, _core.code_bytes(count, config.code_bits), np.uint8) for count in counts]


def expected_sum(config: ThcConfig, codes: list[npt.NDArray[np.uint8]], count: int) -> npt.NDArray[np.int64]:
    values = np.asarray(config.resolve(len(codes)).table.values, np.int64)
    total = np.zeros(count, np.int64)
    for packed in codes:
        unpacked = np.empty(count, np.uint8)
        _core_test.unpack(packed, unpacked, bits=config.code_bits)
        total += values[unpacked]
    return total


def push_all(session: Session, codes: list[npt.NDArray[np.uint8]], counts: list[int]) -> list[npt.NDArray[np.generic]]:
    handles = [
        push_codes(session, partition, packed, count=count)
        for partition, (packed, count) in enumerate(zip(codes, counts, strict=True))
    ]
    results = [handle.wait(60) for handle in handles]
    for result in results:
        assert (result.contributions == result.contributions.max(initial=0)).all()
    return [result.aggregate for result in results]


def check_sums(joined: list[Session], config: ThcConfig, counts: list[int], steps: int = 1) -> None:
    """Every worker pushes random codes; every aggregate must be the exact sum on every worker."""
    for step in range(steps):
        codes = [make_codes(config, counts, 1000 * step + worker) for worker in range(len(joined))]
        aggregates = in_parallel(
            [lambda s=s, c=c: push_all(s, c, counts) for s, c in zip(joined, codes, strict=True)]  # type: ignore[misc]
        )
        for partition, count in enumerate(counts):
            expected = expected_sum(config, [own[partition] for own in codes], count)
            for own in aggregates:
                np.testing.assert_array_equal(own[partition], expected)  # type: ignore[index]
