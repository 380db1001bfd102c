"""Links that carry less than workers send: few packets are repeated, and no server is taken for dead."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from congestion.measuring import Measured, measure, running_workers
from congestion.rows import Row, all_rows
from congestion.shaped_rows import ShapedRows
from network_or_skip import network_or_skip

ROWS = {row.name: row for row in all_rows()}
STEPS = 3
LATE_S = 30.0
#: The target is 2 % of the packets of long runs. The first average finds out the links' rates, and a
#: processor that other tests keep busy answers late.
MOST_REPEATED = 0.05
#: Beside a TCP stream, which keeps the queue full: the fewer packets are in it, the larger is the part that it
#: drops. Workers with .08 of the link repeated 16 %; without congestion control they repeat 84 %.
MOST_REPEATED_BESIDE_TCP = 0.4
#: The share of the link, beside one TCP stream. The target is 0.3; one server had 0.08 to 0.29.
LEAST_SHARE = 0.04


@pytest.fixture(scope="module")
def network() -> Iterator[ShapedRows]:
    with network_or_skip(ShapedRows) as network:
        yield network


def averages(row: Row, network: Any, folder: Path) -> Measured:
    """Return the counters of averages in a row; prints the workers' logs if one is late."""
    with running_workers(row, network, folder) as workers:
        measured = measure(row, "thc_ps", network, workers, STEPS, LATE_S, alone=False)
        if measured.failure:
            print(workers.last_words())
    print(measured)
    return measured


def check(measured: Measured, most_repeated: float = MOST_REPEATED) -> None:
    assert not measured.failure
    assert (measured.steps.moves, measured.steps.rejoins) == (0, 0)
    assert measured.steps.repeated_share <= most_repeated


@pytest.mark.parametrize("name", ["100M-512k-one", "100M-512k-four"])
def test_hundred_megabits(name: str, network: ShapedRows, tmp_path: Path) -> None:
    check(averages(replace(ROWS[name], parameters=1_000_000), network, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tcp-one", "tcp-four"])
def test_a_tcp_stream_beside(name: str, network: ShapedRows, tmp_path: Path) -> None:
    """Both get bytes through a queue that TCP keeps full; lost packets are repeated."""
    measured = averages(ROWS[name], network, tmp_path)
    check(measured, MOST_REPEATED_BESIDE_TCP)
    assert measured.tcp_share is not None
    assert measured.thc_share is not None
    both = measured.tcp_share + measured.thc_share
    assert min(measured.tcp_share, measured.thc_share) >= LEAST_SHARE * both
