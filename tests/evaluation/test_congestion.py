"""Links that carry less than workers send: few packets are repeated, and no server is taken for dead.

Short forms of bench_congestion.py's rows, with real workers and servers. They count packets. The only time is the
deadline of an average.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from congestion.measuring import Measured, measure, running_workers
from congestion.relayed_rows import RelayedRows
from congestion.rows import Row, all_rows
from congestion.shaped_rows import ShapedRows
from network_or_skip import network_or_skip

ROWS = {row.name: row for row in all_rows()}
STEPS = 3
LATE_S = 30.0
#: The target is 2 % of the packets of long runs. The first of these few averages finds out what the links carry, and a
#: processor that other tests keep busy answers late.
MOST_REPEATED = 0.05
#: Of packets whose way up or down loses one in two hundred: each loss is a repeat, of the sum for one worker, too.
#: Four servers had 7 to 10 % on two busy cores.
MOST_REPEATED_WITH_LOSS = 0.15
#: Beside a TCP stream, which keeps the queue full: the fewer packets are in it, the larger is the part of them that it
#: drops. Workers with .08 of the link repeated 16 %; without congestion control they repeat 84 % (docs/benchmarks.md).
MOST_REPEATED_BESIDE_TCP = 0.4
#: Of the link, beside one TCP stream. The target is 0.3; one server had 0.08 to 0.29.
LEAST_SHARE = 0.04


@pytest.fixture(scope="module")
def network() -> Iterator[ShapedRows]:
    with network_or_skip(ShapedRows) as network:
        yield network


def averages(row: Row, network: Any, folder: Path) -> Measured:
    """What is counted in the averages of a row; prints the workers' logs if one is late."""
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
@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith(("100M-", "1G-"))])
def test_rates_and_queues(name: str, network: ShapedRows, tmp_path: Path) -> None:
    check(averages(ROWS[name], network, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slow-host-one", "slow-host-four"])
def test_a_host_at_a_tenth_of_the_others_rate(name: str, network: ShapedRows, tmp_path: Path) -> None:
    check(averages(ROWS[name], network, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tcp-one", "tcp-four"])
def test_a_tcp_stream_beside(name: str, network: ShapedRows, tmp_path: Path) -> None:
    """Both get bytes through a queue that TCP keeps full; what is lost there is repeated."""
    measured = averages(ROWS[name], network, tmp_path)
    check(measured, MOST_REPEATED_BESIDE_TCP)
    assert measured.tcp_share is not None
    assert measured.thc_share is not None
    both = measured.tcp_share + measured.thc_share
    assert min(measured.tcp_share, measured.thc_share) >= LEAST_SHARE * both


@pytest.mark.slow
@pytest.mark.parametrize("name", ["far-one", "far-four"])
def test_a_long_way_that_loses_packets(name: str, tmp_path: Path) -> None:
    with network_or_skip(RelayedRows) as network:
        check(averages(ROWS[name], network, tmp_path), MOST_REPEATED_WITH_LOSS)


@pytest.mark.slow
def test_sixty_four_workers_at_one_server(tmp_path: Path) -> None:
    with network_or_skip(lambda: ShapedRows(crowd=True)) as network:
        check(averages(ROWS["crowd"], network, tmp_path))
