"""Servers and workers with IPv6, with both versions, and on hosts that lack one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from joined_sessions import check_sums, sessions_at
from private_mounts import NO_MOUNTS, can_mount

from byteps_thc import DpdkConfig, UdpConfig
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.doctor.finding import State
from byteps_thc._cli.doctor.server import check_server, parse_server
from byteps_thc._cli.doctor.way import Visit
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from byteps_thc._scheme.adding.server_codes import ServerCodes

COUNTS = [1, 1024, 100_001]


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with ParameterServer(ip="::") as server:
        if not server.address.startswith("["):
            pytest.skip("this kernel has no IPv6")
        yield server.address.rpartition(":")[2]


@pytest.mark.parametrize("merged", [True, False])
def test_one_job_has_workers_of_both_versions(port: str, merged: bool) -> None:
    config, hosts = ServerCodes(), ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]")
    with ExitStack() as stack:
        backend = UdpConfig(gso=merged, gro=merged)
        joined = sessions_at(stack, [[f"{host}:{port}"] for host in hosts], config, backend=backend)
        check_sums(joined, config, COUNTS, steps=2)
        assert [session.addresses for session in joined[:2]] == [[f"127.0.0.1:{port}"], [f"[::1]:{port}"]]
        assert all(session.counters()["foreign"] == 0 for session in joined)


def test_racks_reach_their_root(port: str) -> None:
    with ExitStack() as stack:
        arguments = ["--upstream", f"[::1]:{port}", "--racks", "0,1", "--rack"]
        racks = [stack.enter_context(ParameterServer([*arguments, str(rack)], ip="::1")) for rack in (0, 1)]
        joined = sessions_at(stack, [[rack.address] for rack in racks], backend="udp")
        check_sums(joined, ServerCodes(), COUNTS)


def test_the_doctor_visits(port: str) -> None:
    assert {finding.state for finding in check_server(Visit(parse_server(f"[::1]:{port}")))} == {State.OK}


@pytest.mark.parametrize(
    ("backend", "words"),
    [(DpdkConfig("10.0.0.2"), "DPDK supports IPv4 only"), (UdpConfig(local="127.0.0.1"), "of the other IP version")],
)
def test_what_speaks_ipv4_alone_names_the_server(backend: DpdkConfig | UdpConfig, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Session(["[::1]:9"], job=1, worker=0, workers=1, codes=ServerCodes(), backend=backend)


#: In a network of its own: workers that are told SERVER sum over a thc-ps on LISTEN.
SCRIPT = r"""
import sys
from byteps_thc import ServerCodes, Timeouts
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from contextlib import ExitStack
from joined_sessions import check_sums

listen, server, expected = sys.argv[1:]
with ParameterServer(ip=listen) as ps, ExitStack() as stack:
    port = ps.address.rpartition(":")[2]
    join = lambda worker: Session(
        [f"{server}:{port}"], job=1, worker=worker, workers=2, codes=ServerCodes(), timeouts=Timeouts(connect_s=20)
    )
    joined = [stack.enter_context(join(worker)) for worker in (0, 1)]
    check_sums(joined, ServerCodes(), [1, 1024, 100_001])
    assert joined[0].addresses == [f"{expected}:{port}"], joined[0].addresses
"""
HOSTS = """
127.0.0.1 localhost both.example
::1 both.example six.example
"""


@pytest.mark.parametrize(
    ("before", "listen", "server", "expected"),
    [
        pytest.param("", "127.0.0.1", "both.example", "127.0.0.1", id="a name with both, IPv4 answers"),
        pytest.param("", "::1", "both.example", "[::1]", id="a name with both, IPv6 answers"),
        pytest.param("", "::", "six.example", "[::1]", id="a name with IPv6"),
        pytest.param("ip -4 addr flush dev lo", "::", "[::1]", "[::1]", id="IPv6 alone"),
        pytest.param("ip link set lo mtu 1280", "::", "[::1]", "[::1]", id="the least MTU of IPv6"),
        pytest.param(
            "sysctl -qw net.ipv6.conf.all.disable_ipv6=1", "::", "127.0.0.1", "127.0.0.1", id="IPv6 is switched off"
        ),
    ],
)
@pytest.mark.usefixtures("port")
def test_hosts(tmp_path_factory: pytest.TempPathFactory, before: str, listen: str, server: str, expected: str) -> None:
    if not can_mount():
        pytest.skip(NO_MOUNTS)
    hosts = tmp_path_factory.mktemp("etc") / "hosts"
    hosts.write_text(HOSTS)
    inside = f'ip link set lo up && {before or "true"} && mount --bind "{hosts}" /etc/hosts && exec "$@"'
    command = ["unshare", "--net", "--mount", "sh", "-c", inside, "sh", sys.executable, "-P", "-c", SCRIPT]
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    result = subprocess.run(
        ["env", *(f"{name}={value}" for name, value in environment.items()), *command, listen, server, expected],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


#: In a network of its own with a router to the server, whose far cable takes smaller packets.
ROUTER = """
ip link set lo up; ip netns add router; ip netns add server
sysctl -qw net.ipv6.conf.default.accept_dad=0
for host in router server; do
  ip netns exec $host ip link set lo up
  ip netns exec $host sysctl -qw net.ipv6.conf.default.accept_dad=0
done
ip netns exec router sysctl -qw net.ipv6.conf.all.forwarding=1
ip link add near mtu 9000 type veth peer name to_near mtu 9000 netns router
ip -n router link add to_far mtu 1280 type veth peer name far mtu 1280 netns server
ip addr add 2001:db8:0:1::1/64 dev near; ip -n router addr add 2001:db8:0:1::2/64 dev to_near
ip -n server addr add 2001:db8:0:2::1/64 dev far; ip -n router addr add 2001:db8:0:2::2/64 dev to_far
ip link set near up; ip -n router link set to_near up; ip -n router link set to_far up; ip -n server link set far up
ip route add default via 2001:db8:0:1::2; ip -n server route add default via 2001:db8:0:2::2
"""
FAR = r"""
from byteps_thc import ServerCodes, Timeouts
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from contextlib import ExitStack
from joined_sessions import check_sums

inside = ["ip", "netns", "exec", "server"]
with ParameterServer(prefix=inside, ip="::", port=48865) as ps, ExitStack() as stack:
    config = ServerCodes()
    settings = {"job": 1, "workers": 2, "codes": config, "timeouts": Timeouts(connect_s=20)}
    joined = [
        stack.enter_context(Session(["[2001:db8:0:2::1]"], worker=worker, **settings)) for worker in (0, 1)
    ]
    assert joined[0].addresses == ["[2001:db8:0:2::1]:48865"]
    assert joined[0].codes_per_packet == 1024, joined[0].codes_per_packet
    check_sums(joined, config, [1, 1024, 100_001])
"""


@pytest.mark.usefixtures("port")
def test_a_way_of_ipv6_alone_with_a_smaller_mtu() -> None:
    if not can_mount():
        pytest.skip(NO_MOUNTS)
    script = f'set -e\nmount -t tmpfs none /run\n{ROUTER}\nexec "$@"'
    command = ["unshare", "--net", "--mount", "sh", "-c", script, "sh", sys.executable, "-P", "-c", FAR]
    environment = {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert result.returncode == 0, result.stderr
