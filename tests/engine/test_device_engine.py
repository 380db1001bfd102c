"""Where engines on a device are refused. tests/gpu has the device engine."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from ranks import run_ranks

import byteps_thc.torch.lanes.engines as lane_engines
from byteps_thc import ThcConfig
from byteps_thc._engine.device import choice
from byteps_thc._engine.door import Worker, open_engine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc.torch.settings import ThcCompression

PROGRAM = Path(__file__).with_name("device_engine_rank.py")
ON_DEVICE = CompressionPolicy(kernels="device")
NETWORK = NetworkConfig(["127.0.0.1"])
NOBODY = cast(Any, None)  # refused before the process group is asked
SOMEBODY = cast(Any, object())
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(PROGRAM, 2, tmp_path_factory.mktemp("ranks"))


def test_host_tensors_travel_over_gloo_where_the_group_has_nccl_alone(reports: list[dict[str, Any]]) -> None:
    assert [report["nccl_alone"] for report in reports] == [True, True]


def test_what_one_rank_cannot_have_is_an_error_on_all(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert "kernels is 'host' on rank 0, " in report["refused"]
        assert "the process group has gloo, not NCCL" in report["refused"]


def test_kernels_on_the_device_are_refused_where_processes_average_in_host_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_engines.process, "local_size", lambda: 2)
    settings = ThcCompression(servers=["127.0.0.1"], policy=ON_DEVICE)
    with pytest.raises(ConfigurationError, match=r"BytePS workers of several processes .* host memory only"):
        lane_engines.make_engines(settings, [], [], StatsRecorder())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_servers_need_a_gpu_for_kernels_on_the_device() -> None:
    with pytest.raises(ConfigurationError, match=r'kernels="device"\): torch finds no GPU'):
        open_engine(Worker(0, 2), None, NETWORK, ThcConfig(), ON_DEVICE)


@pytest.mark.parametrize(
    ("backends", "kernels", "gradients_on", "chosen"),
    [
        (["gloo"], "auto", GPU, GPU),
        (["gloo", "nccl"], "auto", GPU, GPU),
        (["gloo"], "auto", CPU, None),
        (["gloo"], "auto", None, None),
        (["gloo"], "host", GPU, None),
        (["gloo"], "device", GPU, GPU),
        (["gloo"], "device", torch.device("cuda"), torch.device("cuda", 1)),
    ],
)
def test_with_servers_the_model_says_where_gradients_are(
    monkeypatch: pytest.MonkeyPatch,
    backends: list[str],
    kernels: str,
    gradients_on: torch.device | None,
    chosen: torch.device | None,
) -> None:
    monkeypatch.setattr(choice, "backends", lambda _: backends)
    monkeypatch.setattr(choice, "_triton_lacks", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    policy = CompressionPolicy(kernels=kernels)  # type: ignore[arg-type]
    untried = chosen if kernels == "device" else None
    for tried, wanted in (({"network"}, chosen), ({"collective"}, untried)):
        monkeypatch.setattr(choice, "TRIED", tried)
        for group in (SOMEBODY, None):
            found = choice.device_of(group, ThcConfig(), policy, gradients_on, engine="network", needs_nccl=False)
            assert found == wanted


@pytest.mark.parametrize(
    ("versions", "error"),
    [
        ({"triton": "3.6.0"}, None),
        ({"pytorch-triton": "3.10.0+git1234"}, None),
        ({"triton": "4.0"}, None),
        ({"triton": "3.5.1"}, "Triton 3.5.1 is too old: pip install 'triton>=3.6'"),
        ({"pytorch-triton-rocm": "2.9"}, "Triton 2.9 is too old"),
        ({}, "Triton does not load"),
    ],
)
def test_triton_without_gluon_is_too_old(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], error: str | None
) -> None:
    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    def import_module(name: str) -> None:
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(choice, "backends", lambda _: ["nccl"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(importlib, "import_module", import_module)
    device = torch.device("cuda", 0)
    if error is None:
        assert choice.device_of(SOMEBODY, ThcConfig(), ON_DEVICE, device, engine="collective") == device
        return
    with pytest.raises(ConfigurationError, match=error.replace("[", r"\[")):
        choice.device_of(SOMEBODY, ThcConfig(), ON_DEVICE, device, engine="collective")
