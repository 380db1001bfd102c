"""Real workers, without network interfaces of their own, through the P4 programs on a UDP socket."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from e2e.udp_switch import HOST, SERVER, free_udp_ports, job_of, udp_switch
from e2e.workers import JOB, Work, Workers, digest_of_thc_ps
from joined_sessions import check_sums

from byteps_thc._net.session import Session, Timeouts, UdpConfig
from byteps_thc._scheme.config import ThcConfig

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


def test_workers_who_are_told_no_packet_size_take_the_switchs():
    ports = free_udp_ports(2)
    with udp_switch("v1model", job_of(JOB, ports, ThcConfig())), ExitStack() as stack:
        joined = [
            stack.enter_context(
                Session(
                    [SERVER],
                    job=JOB,
                    worker=worker,
                    workers=2,
                    config=ThcConfig(),
                    backend=UdpConfig(local=f"{HOST}:{port}"),
                    timeouts=Timeouts(connect_s=30.0, operation_s=60.0),
                )
            )
            for worker, port in enumerate(ports)
        ]
        assert [session.codes_per_packet for session in joined] == [1024, 1024]
        check_sums(joined, ThcConfig(), [1024 + 300], steps=1)


@pytest.mark.parametrize("program", ["v1model", "tna"])
def test_20_workers_get_exact_sums_of_13_levels(program):
    """More than the 17 whose sums of 16 levels fit 8 bits: auto leaves three codes over (p4/README.md)."""
    count = 20
    config = ThcConfig(value_bits=8)
    assert config.resolve(count).table.levels == 13
    ports = free_udp_ports(count)
    timeouts = Timeouts(connect_s=30.0, operation_s=60.0)
    with udp_switch(program, job_of(JOB, ports, ThcConfig())), ExitStack() as stack:
        joined = [
            stack.enter_context(
                Session(
                    [SERVER],
                    job=JOB,
                    worker=worker,
                    workers=count,
                    config=config,
                    backend=UdpConfig(local=f"{HOST}:{port}"),
                    timeouts=timeouts,
                )
            )
            for worker, port in enumerate(ports)
        ]
        check_sums(joined, config, [1024 + 300, 3], steps=2)
