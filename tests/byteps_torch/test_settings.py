"""Compression.thc: arguments override environment variables, which override defaults. Mistakes are named."""

import pytest

import byteps_thc.torch as bps
from byteps_thc import ServerCodes
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.door import choose_policy
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.network_settings import nth_socket
from byteps_thc._net.session import DpdkConfig, Timeouts, UdpConfig
from byteps_thc.torch import Compression


def test_defaults():
    settings = Compression.thc(servers=["10.0.0.1"])
    assert (settings.route, settings.job, settings.lane_count, settings.backend) == ("network", 1, 2, "udp")
    assert settings.codes == ServerCodes()
    assert settings.policy == CompressionPolicy()


def test_the_environment_chooses_the_route(monkeypatch):
    for name, value in {
        "ROUTE": "servers",
        "JOB": "7",
        "SERVERS": "lanes=3",
        "POLICY": "warmup_steps=5,exclude=lm_head,*.router.*",
        "DEADLINE_S": "2.5",
        "LOG_EVERY": "10",
        "CONFIG": "granularity=30,p=1/32",
    }.items():
        monkeypatch.setenv(f"THC_{name}", value)
    settings = Compression.thc()
    assert (settings.route, settings.job, settings.lanes, settings.log_every) == ("servers", 7, 3, 10)
    assert settings.policy == CompressionPolicy(warmup_steps=5, exclude=("lm_head", "*.router.*"), deadline_s=2.5)
    assert settings.codes == ServerCodes(granularity=30, p=1 / 32)


def test_arguments_win(monkeypatch):
    monkeypatch.setenv("THC_SERVERS", "10.0.0.1, 10.0.0.2:4000")
    monkeypatch.setenv("THC_JOB", "3")
    assert Compression.thc().servers == ("10.0.0.1", "10.0.0.2:4000")
    settings = Compression.thc(ServerCodes.paper(), servers=["10.0.0.9"], job=4)
    assert (settings.codes, settings.servers, settings.job) == (ServerCodes.paper(), ("10.0.0.9",), 4)


def test_dpdk_from_the_environment(monkeypatch):
    monkeypatch.setenv("THC_BACKEND", "dpdk")
    monkeypatch.setenv("THC_LOCAL", "10.0.0.5")
    monkeypatch.setenv("THC_EAL_ARGS", "--no-huge -m 256 --vdev='net_af_packet0,iface=veth0'")
    settings = Compression.thc(servers=["10.0.0.1"])
    assert settings.backend == DpdkConfig(
        local="10.0.0.5", eal_args=["--no-huge", "-m", "256", "--vdev=net_af_packet0,iface=veth0"]
    )
    assert settings.lane_count == 1  # a device serves one session


def test_timeouts_from_the_environment(monkeypatch):
    monkeypatch.setenv("THC_SERVERS", "10.0.0.1, connect_s=60, loss_s=1")
    monkeypatch.setenv("THC_DEADLINE_S", "90")
    assert Compression.thc().timeouts == Timeouts(connect_s=60, loss_s=1, operation_s=90)
    monkeypatch.setenv("THC_SERVERS", "10.0.0.1,operation_s=5")
    assert Compression.thc().timeouts == Timeouts(operation_s=5)
    given = Timeouts(connect_s=7)
    assert Compression.thc(timeouts=given).timeouts == given


def test_lanes_bind_ports_of_their_own():
    backend = UdpConfig(local="10.0.0.5:6000", gro=False)
    assert nth_socket(backend, 0) == backend
    assert nth_socket(backend, 2) == UdpConfig(local="10.0.0.5:6002", gro=False)
    assert nth_socket(UdpConfig(local="10.0.0.5"), 2) == UdpConfig(local="10.0.0.5")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ({}, {}, "THC_SERVERS"),
        ({"route": "ring", "servers": ["10.0.0.1"]}, {}, "route: .*network.*servers"),
        ({"servers": ["10.0.0.1"]}, {"JOB": "many"}, "THC_JOB must be a whole number in 0 .. 65535, not 'many'"),
        ({"servers": ["10.0.0.1"]}, {"BACKEND": "rdma"}, "THC_BACKEND"),
        ({"servers": ["10.0.0.1"]}, {"BACKEND": "dpdk"}, "THC_LOCAL"),
        ({}, {"SERVERS": "10.0.0.1,conect_s=1"}, "THC_SERVERS: conect_s: .*did you mean connect_s"),
        ({}, {"SERVERS": "10.0.0.1,connect_s=soon"}, "THC_SERVERS: connect_s='soon' must be a positive number"),
        ({}, {"SERVERS": "10.0.0.1,lanes=two"}, "THC_SERVERS: lanes='two' must be a positive number"),
        ({}, {"SERVERS": "10.0.0.1,lanes="}, "write THC_SERVERS=10.0.0.1,10.0.0.2:4000,quorum=0.9 or the path"),
        ({"servers": ["10.0.0.1"]}, {"POLICY": "warmup_steps=-1"}, "warmup_steps"),
        ({"servers": ["10.0.0.1"]}, {"POLICY": "warmup_steps=x"}, "warmup_steps: .*from THC_POLICY"),
        (
            {"servers": ["10.0.0.1"]},
            {"DEADLINE_S": "x"},
            "THC_DEADLINE_S must be a positive number of seconds, not 'x'",
        ),
        ({"servers": ["10.0.0.1"]}, {"DEADLINE_S": "1e9"}, "deadline_s: .*from THC_DEADLINE_S"),
        ({"servers": ["10.0.0.1"]}, {"POLICY": "warmup=1"}, "THC_POLICY: warmup: .*did you mean warmup_steps"),
        (
            {"servers": ["10.0.0.1"], "bits": 4},
            {},
            "bits: .*it is a setting of .*, codes=ServerCodes",
        ),
        ({"servers": ["10.0.0.1"], "warmup_steps": 4}, {}, "it is a setting of CompressionPolicy"),
        ({"servers": ["10.0.0.1"], "lanes": 2, "backend": DpdkConfig(local="10.0.0.5")}, {}, "lanes=1"),
        ({"servers": ["10.0.0.1"], "sever": 1}, {}, "sever"),
    ],
)
def test_mistakes_are_named(arguments, environment, message, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(f"THC_{name}", value)
    with pytest.raises(ConfigurationError, match=message):
        Compression.thc(**arguments)


def test_a_policy_that_a_program_gives_wins_over_the_variable(monkeypatch, caplog):
    monkeypatch.setenv("THC_POLICY", "bypass_elements=64,rows=experts.*")
    monkeypatch.setenv("THC_DEADLINE_S", "90")
    policy = CompressionPolicy(bypass_elements=64)
    assert Compression.thc(route="servers", policy=policy).policy == policy
    assert choose_policy(policy) == policy.among_ranks()
    assert caplog.messages == [
        "THC_POLICY: ignored: rows=experts.*; the program sets a CompressionPolicy, which overrides the variable",
        "THC_DEADLINE_S: ignored: deadline_s=90.0; the program sets a CompressionPolicy, which overrides the variable",
    ]
    from_variables = CompressionPolicy(bypass_elements=64, rows=("experts.*",), deadline_s=90)
    assert choose_policy(None) == from_variables.among_ranks()


def test_servers_and_their_settings_from_a_file(monkeypatch, tmp_path):
    file = tmp_path / "servers.toml"
    file.write_text('servers = ["10.0.0.1", "10.0.0.2"]\nquorum = 2\nlanes = 1\n')
    monkeypatch.setenv("THC_SERVERS", str(file))
    settings = Compression.thc()
    assert (settings.servers, settings.quorum, settings.lane_count) == (("10.0.0.1", "10.0.0.2"), 2, 1)


LAUNCHED = {"BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1", "DMLC_WORKER_ID": "0", "DMLC_NUM_WORKER": "1"}


@pytest.mark.parametrize("missing", [[*LAUNCHED], ["BYTEPS_LOCAL_RANK"], ["DMLC_NUM_WORKER"]])
@pytest.mark.parametrize("lazy", [True, False])
def test_what_bpslaunch_would_have_set_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: list[str], lazy: bool
) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    for name in missing:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match=f"^{', '.join(missing)} not set: start .* with bpslaunch, not"):
        bps.init(lazy)
