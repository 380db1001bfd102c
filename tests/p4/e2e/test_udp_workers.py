"""Real workers, without network interfaces of their own, through the P4 programs on a UDP socket."""

from __future__ import annotations

import pytest
from e2e.udp_switch import HOST, SERVER, free_udp_ports, job_of, udp_switch
from e2e.workers import JOB, Work, Workers, digest_of_thc_ps

from byteps_thc.config import ThcConfig

WORK = Work(backends=("udp", "udp"), counts=(3 * 1024 + 300, 3), steps=2)


@pytest.mark.parametrize("program", ["v1model", pytest.param("tna", marks=pytest.mark.slow)])
def test_workers_on_udp_sockets_get_the_sums_of_thc_ps(program):
    ports = free_udp_ports(2)
    settings = [
        WORK.settings(worker, SERVER, {"udp": {"local": f"{HOST}:{port}"}}) for worker, port in enumerate(ports)
    ]
    with udp_switch(program, job_of(JOB, ports, ThcConfig())) as front, Workers(settings) as workers:
        digests = {outcome["digest"] for outcome in workers.outcomes()}
    assert digests == {digest_of_thc_ps(2, WORK.counts, WORK.steps)}
    assert front.statistics.send_errors == 0
