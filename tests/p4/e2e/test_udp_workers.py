"""Real workers, without network interfaces of their own, through the P4 programs on a UDP socket."""

from contextlib import ExitStack

import pytest
from e2e.udp_switch import free_udp_ports, job_of, sessions_at, udp_switch
from e2e.workers import JOB
from joined_sessions import check_sums

from byteps_thc._scheme.adding.server_codes import ServerCodes


def test_workers_who_are_told_no_packet_size_take_the_switchs():
    ports = free_udp_ports(2)
    with udp_switch("v1model", job_of(JOB, ports, ServerCodes())), ExitStack() as stack:
        joined = sessions_at(ports, JOB, ServerCodes(), stack)
        assert [session.codes_per_packet for session in joined] == [1024, 1024]
        check_sums(joined, ServerCodes(), [1024 + 300], steps=1)


@pytest.mark.parametrize("program", ["v1model", "tna"])
def test_20_workers_get_exact_sums_of_13_levels(program):
    """More than the 17 whose sums of 16 levels fit 8 bits: auto leaves three codes over (p4/README.md)."""
    count = 20
    config = ServerCodes(value_bits=8)
    assert config.resolve(count).table.levels == 13
    ports = free_udp_ports(count)
    with udp_switch(program, job_of(JOB, ports, ServerCodes())), ExitStack() as stack:
        check_sums(sessions_at(ports, JOB, config, stack), config, [1024 + 300, 3], steps=2)
