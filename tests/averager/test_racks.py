"""Gradients averaged over racks: the same numbers, to the bit, as by one server for all workers."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pytest

from byteps_thc import Compressor, GradientAverager, ServerCodes, Session
from byteps_thc._cli.launch import ParameterServer
from thc_lab.rack_servers import RackServers

# 16 KiB partitions: many slots
SMALL: dict[str, Any] = {"partition_bytes": 1 << 14, "rotation_block": 1024, "codes_per_packet": 1024}
SIZES = {"embedding": 70_001, "bias": 1, "empty": 0, "head": 30_000}
STEPS = 6


def averages_of(
    addresses: list[str], config: ServerCodes, *, job: int = 1, **settings: Any
) -> list[list[dict[str, np.ndarray]]]:
    """Return the averages of each worker, at its server, of every step."""
    workers = len(addresses)

    def train(worker: int) -> list[dict[str, np.ndarray]]:
        rng = np.random.default_rng(worker)
        with Session([addresses[worker]], job=job, worker=worker, workers=workers, codes=config, **settings) as session:
            averager = GradientAverager(session, Compressor(config, workers=workers, worker=worker))
            steps = [{name: rng.standard_normal(n, np.float32) for name, n in SIZES.items()} for _ in range(STEPS)]
            for step in steps:
                averager.average(step)
            return steps

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(train, range(workers)))


def assert_same(averages: list[list[dict[str, np.ndarray]]], expected: list[list[dict[str, np.ndarray]]]) -> None:
    for own, other in zip(averages, expected, strict=True):
        for step, other_step in zip(own, other, strict=True):
            for name in SIZES:
                np.testing.assert_array_equal(step[name], other_step[name])


@pytest.mark.parametrize(
    ("sizes", "value_bits", "threads"),
    [((2, 2), 8, 1), ((2, 2), 16, 3), ((3, 1), 16, 1), ((3, 1), 8, 2), ((1, 2, 1), 16, 2)],
)
def test_racks_average_as_one_server_does(sizes: tuple[int, ...], value_bits: Literal[8, 16], threads: int) -> None:
    config = ServerCodes(value_bits=value_bits, granularity=40, **SMALL)
    with RackServers(sizes, ["--threads", str(threads), "--slots", "64"]) as racks, ParameterServer() as single:
        averages = averages_of([racks.address_of(worker) for worker in range(racks.workers)], config)
        assert_same(averages, averages_of([single.address] * racks.workers, config))
    assert np.any(averages[0][0]["head"])


def test_root_that_starts_after_the_leaves() -> None:
    config = ServerCodes(**SMALL)
    with RackServers((1, 1)) as racks, ThreadPoolExecutor(1) as pool:
        racks.root.stop()
        training = pool.submit(averages_of, [leaf.address for leaf in racks.leaves], config)
        time.sleep(1.5)  # long enough for a leaf to say that it has no answer
        racks.start_root()
        averages = training.result(30)
    for name in SIZES:
        np.testing.assert_array_equal(averages[0][-1][name], averages[1][-1][name])
