"""How many codes packets have where a front end is told nothing: NetworkConfig, Compression.thc and THC_CONFIG."""

from __future__ import annotations

import pytest

from byteps_thc import NetworkConfig, ThcConfig
from byteps_thc.errors import ServerRefusedError
from byteps_thc.tools.launch import ParameterServer
from byteps_thc.transport.session import Session

DEADLINE_S = 20.0


def join(server: ParameterServer, job: int, worker: int, config: ThcConfig) -> Session:
    return NetworkConfig([server.address], job=job).open_session(config, worker, 2, DEADLINE_S)


def test_networks_packets_are_as_large_as_the_path_takes(thc_ps: ParameterServer) -> None:
    with join(thc_ps, 1, 0, ThcConfig()) as first, join(thc_ps, 1, 1, ThcConfig()) as second:
        assert (first.codes_per_packet, second.codes_per_packet) == (16384, 16384)


def test_a_given_size_is_the_jobs(thc_ps: ParameterServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THC_CONFIG", "codes_per_packet=1024")
    with join(thc_ps, 1, 0, ThcConfig.from_environment()) as first, join(thc_ps, 1, 1, ThcConfig()) as second:
        assert (first.codes_per_packet, second.codes_per_packet) == (1024, 1024)


def test_a_given_size_that_differs_is_refused_by_name(thc_ps: ParameterServer) -> None:
    with (
        join(thc_ps, 1, 0, ThcConfig()),
        pytest.raises(ServerRefusedError, match=r"codes_per_packet of worker 1 .*this worker: 1024, job: 16384"),
    ):
        join(thc_ps, 1, 1, ThcConfig(codes_per_packet=1024))


def test_every_front_ends_config_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THC_CONFIG", raising=False)
    assert ThcConfig.from_environment().codes_per_packet == "auto"
    assert ThcConfig.paper().codes_per_packet == ThcConfig.uniform().codes_per_packet == "auto"
