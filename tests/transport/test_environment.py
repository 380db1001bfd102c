"""NetworkConfig.from_environment: what `thc testbed` tells the ranks of torchrun."""

from __future__ import annotations

import dataclasses

import pytest

from byteps_thc import NetworkConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.transport.session import DpdkConfig, Timeouts, UdpConfig


def set_variables(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_servers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, THC_SERVERS="10.0.0.1, 10.0.0.2:4000")
    assert NetworkConfig.from_environment() == NetworkConfig(["10.0.0.1", "10.0.0.2:4000"])


@pytest.mark.parametrize(("text", "quorum"), [("3", 3), ("0.9", 0.9)])
def test_everything(monkeypatch: pytest.MonkeyPatch, text: str, quorum: float) -> None:
    set_variables(
        monkeypatch,
        THC_SERVERS="10.0.0.1",
        THC_JOB="7",
        THC_QUORUM=text,
        THC_LOSS_TOLERANT="1",
        THC_POLLING_THREADS="2",
        THC_TIMEOUTS="connect_s=60",
        THC_DEADLINE_S="90",
    )
    timeouts = Timeouts(connect_s=60, operation_s=90)
    expected = NetworkConfig(
        ["10.0.0.1"], job=7, quorum=quorum, loss_tolerant=True, timeouts=timeouts, polling_threads=2
    )
    assert NetworkConfig.from_environment() == expected


@pytest.mark.parametrize(("local", "bound"), [("10.0.0.5:49000", "10.0.0.5:49003"), ("10.0.0.5", "10.0.0.5")])
def test_each_rank_of_a_host_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch, local: str, bound: str) -> None:
    set_variables(monkeypatch, THC_SERVERS="10.0.0.1", THC_LOCAL=local, LOCAL_RANK="3")
    assert NetworkConfig.from_environment().backend == UdpConfig(local=bound)


def test_each_polling_thread_of_a_rank_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    local = "10.0.0.5:49000"
    set_variables(monkeypatch, THC_SERVERS="10.0.0.1", THC_LOCAL=local, LOCAL_RANK="3", THC_POLLING_THREADS="2")
    assert NetworkConfig.from_environment().backend == UdpConfig(local="10.0.0.5:49006")


def test_dpdk(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, THC_SERVERS="10.0.0.1", THC_BACKEND="dpdk", THC_LOCAL="10.0.0.5", THC_EAL_ARGS="-m 64")
    dpdk = DpdkConfig(local="10.0.0.5", eal_args=["-m", "64"])
    assert NetworkConfig.from_environment().backend == dpdk
    set_variables(monkeypatch, THC_DPDK_NEIGHBOURS="10.0.0.1=02:00:00:00:00:01, 10.0.0.2=02:00:00:00:00:02")
    neighbours = (("10.0.0.1", "02:00:00:00:00:01"), ("10.0.0.2", "02:00:00:00:00:02"))
    assert NetworkConfig.from_environment().backend == dataclasses.replace(dpdk, neighbours=neighbours)
    set_variables(monkeypatch, THC_DPDK_NEIGHBOURS="10.0.0.1")
    with pytest.raises(ConfigurationError, match=r"THC_DPDK_NEIGHBOURS: '10.0.0.1' is not IP=MAC"):
        NetworkConfig.from_environment()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "THC_SERVERS is not set"),
        ({"THC_SERVERS": " , "}, "THC_SERVERS is not set"),
        ({"THC_SERVERS": "10.0.0.1", "THC_JOB": "one"}, "THC_JOB.*no number.*one"),
        ({"THC_SERVERS": "10.0.0.1", "THC_QUORUM": "most"}, "THC_QUORUM.*no number.*most"),
        ({"THC_SERVERS": "10.0.0.1", "THC_POLLING_THREADS": "two"}, "THC_POLLING_THREADS.*no number.*two"),
        ({"THC_SERVERS": "10.0.0.1", "THC_BACKEND": "rdma"}, "THC_BACKEND must be udp or dpdk"),
        (
            {"THC_SERVERS": "10.0.0.1", "THC_BACKEND": "dpdk", "THC_LOCAL": "10.0.0.5", "LOCAL_RANK": "1"},
            "start one on each host",
        ),
    ],
)
def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str) -> None:
    set_variables(monkeypatch, **variables)
    with pytest.raises(ConfigurationError, match=message):
        NetworkConfig.from_environment()
