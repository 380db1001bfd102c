"""Sessions of all workers of a job in one process, and exact sums through them."""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import _core_test
import numpy as np
import numpy.typing as npt
from pushed_codes import push_codes

from byteps_thc._native import _core
from byteps_thc._net.session import Session, UdpConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes

LOOPBACK = UdpConfig(local="127.0.0.1:0")

#: Numbers of jobs, one for each job of a test.
next_job = iter(range(1, 1 << 16))


def sessions(
    stack: ExitStack, servers: list[str], workers: int, config: ServerCodes | None = None, **settings: object
) -> list[Session]:
    """Join all workers of a job at the same servers."""
    return sessions_at(stack, [servers] * workers, config, **settings)


def sessions_at(
    stack: ExitStack, servers: Sequence[list[str]], config: ServerCodes | None = None, **settings: object
) -> list[Session]:
    """Join one worker for each list of servers, as in racks."""
    job, workers = next(next_job), len(servers)
    shared = {"job": job, "workers": workers, "codes": config or ServerCodes(), "backend": LOOPBACK} | settings
    return [
        stack.enter_context(Session(own, worker=worker, **shared))  # type: ignore[arg-type]
        for worker, own in enumerate(servers)
    ]


def make_codes(config: ServerCodes, counts: list[int], seed: int) -> list[npt.NDArray[np.uint8]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, _core.code_bytes(count, config.bits), np.uint8) for count in counts]


def expected_sum(config: ServerCodes, codes: list[npt.NDArray[np.uint8]], count: int) -> npt.NDArray[np.int64]:
    values = np.asarray(config.resolve(len(codes)).table.values, np.int64)
    total = np.zeros(count, np.int64)
    for packed in codes:
        unpacked = np.empty(count, np.uint8)
        _core_test.unpack(packed, unpacked, bits=config.bits)
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


def check_sums(joined: list[Session], config: ServerCodes, counts: list[int], steps: int = 1) -> None:
    """Every worker pushes random codes; every aggregate must be the exact sum on every worker."""
    for step in range(steps):
        codes = [make_codes(config, counts, 1000 * step + worker) for worker in range(len(joined))]
        with ThreadPoolExecutor(len(joined)) as pool:
            aggregates = list(pool.map(push_all, joined, codes, itertools.repeat(counts)))
        for partition, count in enumerate(counts):
            expected = expected_sum(config, [own[partition] for own in codes], count)
            for own in aggregates:
                np.testing.assert_array_equal(own[partition], expected)
