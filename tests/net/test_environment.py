"""NetworkConfig.from_environment: variables that `thc testbed` sets for the ranks of torchrun."""

from typing import Any

import pytest

from byteps_thc import NetworkConfig
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import warn_once
from byteps_thc._engine.door import choose_scheme
from byteps_thc._net.session import DpdkConfig, Timeouts, UdpConfig


def set_variables(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_servers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, THC_SERVERS="10.0.0.1, [fe80::1%eth0]:4000")
    assert NetworkConfig.from_environment() == NetworkConfig(("10.0.0.1", "[fe80::1%eth0]:4000"))


@pytest.mark.parametrize(("text", "quorum"), [("3", 3), ("0.9", 0.9)])
def test_everything(monkeypatch: pytest.MonkeyPatch, text: str, quorum: float) -> None:
    set_variables(
        monkeypatch,
        THC_SERVERS=f"10.0.0.1,quorum={text},loss_tolerant=true,connect_s=60",
        THC_JOB="7",
        THC_DEADLINE_S="90",
    )
    timeouts = Timeouts(connect_s=60, operation_s=90)
    expected = NetworkConfig(("10.0.0.1",), job=7, quorum=quorum, loss_tolerant=True, timeouts=timeouts)
    assert NetworkConfig.from_environment() == expected


@pytest.mark.parametrize(("local", "bound"), [("10.0.0.5:49000", "10.0.0.5:49003"), ("10.0.0.5", "10.0.0.5")])
def test_each_rank_of_a_host_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch, local: str, bound: str) -> None:
    set_variables(monkeypatch, THC_SERVERS="10.0.0.1", THC_LOCAL=local, LOCAL_RANK="3")
    assert NetworkConfig.from_environment().backend == UdpConfig(local=bound)


def test_dpdk(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, THC_SERVERS="10.0.0.1", THC_BACKEND="dpdk", THC_LOCAL="10.0.0.5", THC_EAL_ARGS="-m 64")
    assert NetworkConfig.from_environment().backend == DpdkConfig(local="10.0.0.5", eal_args=["-m", "64"])


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "THC_SERVERS is not set"),
        ({"THC_SERVERS": " , "}, "THC_SERVERS=',' has no address: set it to the addresses of thc-ps"),
        ({"THC_SERVERS": "10.0.0.1", "THC_JOB": "one"}, "THC_JOB must be a whole number in 0 .. 65535, not 'one'"),
        ({"THC_SERVERS": "10.0.0.1", "THC_JOB": "65536"}, "THC_JOB must be a whole number in 0 .. 65535, not '65536'"),
        ({"THC_SERVERS": "10.0.0.1 10.0.0.2"}, "THC_SERVERS: '10.0.0.1 10.0.0.2' is not a server"),
        (
            {"THC_SERVERS": "10.0.0.1,quorum=most"},
            r"THC_SERVERS: quorum='most' must be a number of workers \(9\), or a share",
        ),
        ({"THC_SERVERS": "10.0.0.1,quorum=0"}, "THC_SERVERS: quorum must be in 1 .. 64"),
        ({"THC_SERVERS": "10.0.0.1,quorum=1.5"}, "THC_SERVERS: quorum is 1.5: give a number of workers"),
        ({"THC_SERVERS": "10.0.0.1,connect_s=x"}, "THC_SERVERS: connect_s='x' must be a positive number of seconds"),
        ({"THC_SERVERS": "10.0.0.1,lanes=0"}, "THC_SERVERS: lanes=0 must be a positive number"),
        ({"THC_SERVERS": "10.0.0.1,lanes=2"}, "THC_SERVERS: lanes is a setting of BytePS alone: omit it"),
        ({"THC_SERVERS": "10.0.0.1,loss_tolerant=1"}, "THC_SERVERS: loss_tolerant=1 must be true or false"),
        ({"THC_SERVERS": "10.0.0.1", "THC_BACKEND": "rdma"}, "THC_BACKEND must be udp or dpdk"),
        (
            {"THC_SERVERS": "10.0.0.1", "THC_BACKEND": "dpdk", "THC_LOCAL": "10.0.0.5", "LOCAL_RANK": "1"},
            "start one on each host",
        ),
        (
            {"THC_SERVERS": "10.0.0.1,connect_s=60", "THC_DEADLINE_S": "x"},
            "THC_DEADLINE_S must be a positive number of seconds",
        ),
    ],
)
def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str) -> None:
    set_variables(monkeypatch, **variables)
    with pytest.raises(ConfigurationError, match=message):
        NetworkConfig.from_environment()


def test_network_settings_of_another_type_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^timeouts must be a Timeouts, not 5: pass "):
        NetworkConfig(["10.0.0.1"], timeouts=5)  # type: ignore[arg-type]


def test_servers_that_a_front_end_does_not_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    set_variables(monkeypatch, THC_SERVERS="10.0.0.1", RANK="1")
    choose_scheme(None, {})  # the first rank says it
    set_variables(monkeypatch, THC_SERVERS="10.0.0.1", RANK="0")
    choose_scheme(NetworkConfig.from_environment(), {})
    assert not caplog.messages
    choose_scheme(None, {})
    assert "THC_SERVERS is ignored, ranks average without servers" in caplog.text


@pytest.mark.parametrize("value", ["x", -1, 0, True, float("nan")])
def test_timeouts_are_positive_numbers(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^connect_s={value!r} must be a positive number of seconds$"):
        Timeouts(connect_s=value)


def test_offloads_are_true_or_false() -> None:
    with pytest.raises(ConfigurationError, match=r"^gso='maybe' must be True or False$"):
        UdpConfig(gso="maybe")  # type: ignore[arg-type]
