"""How many codes packets have where a front end is told nothing: NetworkConfig, Compression.thc and THC_CONFIG."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pushed_codes import push_codes

from byteps_thc import NetworkConfig, ThcConfig
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from byteps_thc._scheme.errors import DeadlineError, ServerRefusedError

DEADLINE_S = 20.0


def join(server: ParameterServer, job: int, worker: int, config: ThcConfig) -> Session:
    return NetworkConfig([server.address], job=job).open_session(config, worker, 2, DEADLINE_S)


def test_who_waits_for_a_worker_that_was_refused_is_told_why(thc_ps: ParameterServer) -> None:
    with NetworkConfig([thc_ps.address], job=1).open_session(ThcConfig(), 0, 2, deadline_s=1.0) as first:
        with pytest.raises(ServerRefusedError, match="codes_per_packet"):
            join(thc_ps, 1, 1, ThcConfig(codes_per_packet=1024))
        pushed = push_codes(first, 0, np.zeros(512, np.uint8))
        why = r"missing worker 1; the server has refused one that differs in codes_per_packet \(1024, here 16384\)"
        with pytest.raises(DeadlineError, match=rf"{why}.* ThcConfig\(codes_per_packet=1024\) on all of them"):
            pushed.wait(DEADLINE_S)


def test_smaller_packets_wait_for_the_job_of_larger_ones_to_end(thc_ps: ParameterServer) -> None:
    """Of two servers one takes small packets. Worker 2 hears so before worker 0, who is in the other one's job."""

    def come() -> tuple[int, bool]:
        both = NetworkConfig([thc_ps.address, narrow.address], job=1)
        with both.open_session(ThcConfig(), 2, 3, DEADLINE_S) as session:
            return session.codes_per_packet, has_left.is_set()

    has_left = threading.Event()
    with ParameterServer() as narrow, ThreadPoolExecutor(1) as pool:
        first = NetworkConfig([thc_ps.address], job=1).open_session(ThcConfig(), 0, 3, DEADLINE_S)
        small = ThcConfig(codes_per_packet=1024)
        with first, NetworkConfig([narrow.address], job=1).open_session(small, 1, 3, DEADLINE_S):
            coming = pool.submit(come)
            with pytest.raises(TimeoutError):
                coming.result(1.0)
            has_left.set()
            first.close()
            assert coming.result(DEADLINE_S) == (1024, True)
