"""Workers that a quorum leaves behind, against the real thc-ps: their results, and the contributions that count."""

from contextlib import ExitStack

import _core_test
import numpy as np
import numpy.typing as npt
import pytest
from free_ports import free_tcp_port
from joined_sessions import make_codes, sessions
from pushed_codes import push_codes
from scraped_metrics import total

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from byteps_thc._scheme.adding.server_codes import ServerCodes

CONFIG = ServerCodes(codes_per_packet=1024)
COUNT = 3000
#: Two slots are for norms.
SLOTS = 16


def push_norms(joined: list[Session], partition: int) -> list[npt.NDArray[np.float32]]:
    """The maxima that each gets, when worker i has norms of 1 + i."""
    maxima = [np.full(4, -1, np.float32) for _ in joined]
    stages = [
        session.push_norms(partition, np.full(4, 1 + number, np.float32), out)
        for number, (session, out) in enumerate(zip(joined, maxima, strict=True))
    ]
    for session, stage in zip(joined, stages, strict=True):
        session.wait(stage, 30)
    return maxima


def sum_of(codes: list[npt.NDArray[np.uint8]], workers: int) -> npt.NDArray[np.int64]:
    values = np.asarray(CONFIG.resolve(workers).table.values, np.int64)
    total, unpacked = np.zeros(COUNT, np.int64), np.empty(COUNT, np.uint8)
    for packed in codes:
        _core_test.unpack(packed, unpacked, bits=CONFIG.bits)
        total += values[unpacked]
    return total


@pytest.mark.parametrize("threads", [1, 2])
def test_who_is_late_for_the_norms_does_not_count(threads: int) -> None:
    """3 + 1 workers: the late worker's codes arrive before the others', and sums still have three contributions."""
    metrics_port = free_tcp_port()
    arguments = ["--threads", str(threads), "--metrics-port", str(metrics_port), "--slots", str(SLOTS)]
    with ParameterServer(arguments) as server, ExitStack() as stack:
        *prompt, late = sessions(stack, [server.address], 4, CONFIG, quorum=3)
        for partition in range(6):  # three laps of the slots for norms
            for maxima in push_norms(prompt, partition):
                np.testing.assert_array_equal(maxima, 3)
        np.testing.assert_array_equal(push_norms([late], 0)[0], 0)
        codes = [make_codes(CONFIG, [COUNT], worker)[0] for worker in range(4)]
        pushed = [push_codes(late, 0, codes[3], count=COUNT)]
        assert total(metrics_port, "thc_ps_abstained_total", awaited=3) >= 3  # packets
        assert late.counters()["abstained"] >= 3
        pushed += [push_codes(session, 0, own, count=COUNT) for session, own in zip(prompt, codes[:3], strict=True)]
        for result in pushed:
            result.wait(30)
            np.testing.assert_array_equal(result.contributions, 3)
            np.testing.assert_array_equal(result.aggregate, sum_of(codes[:3], 4))
        # It has kept its place in the slots: with maxima it counts again.
        for partition in range(1, 6):
            late_maxima = push_norms([late], partition)[0]
            np.testing.assert_array_equal(late_maxima, 0 if partition < 2 else 3)
            abstained = late.counters()["abstained"]
            pushed = [push_codes(s, partition, own, count=COUNT) for s, own in zip([late, *prompt], codes, strict=True)]
            for result in pushed:
                result.wait(30)
            assert (late.counters()["abstained"] > abstained) == (partition < 2)
