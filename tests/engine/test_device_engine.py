"""Refusals of engines on a device. tests/gpu has the device engine."""

import importlib
import re
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from reports import Reports, reports_of

import byteps_thc.torch.lanes.engines as lane_engines
from byteps_thc import ServerCodes
from byteps_thc._base.errors import ConfigurationError, DeadlineError
from byteps_thc._engine.device import choice, self_check
from byteps_thc._engine.door import Worker, open_engine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.decoding.settings import RankCodes
from byteps_thc.torch.settings import ThcCompression

ON_DEVICE = CompressionPolicy(kernels="device")
NETWORK = NetworkConfig(["127.0.0.1"])
NOBODY = cast(Any, None)  # refused before the process group is asked
SOMEBODY, ANOTHER = (cast(Any, Mock(rank=lambda rank=rank: rank)) for rank in (0, 1))
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
#: Kernels, or errors, of both ranks.
RANK_CASES = {
    "same bits": ["device", "device"],
    "other bits": ["host", "host"],
    "the host": ["host", "host"],
    "no Triton": ["host", "host"],
    "gradients in host memory": ["host", "host"],
    "another policy": ["host", "device"],
    "a failed GPU": ["ConfigurationError: rank 1 could not begin: CUDA error", "RuntimeError: CUDA error"],
}


reports = reports_of(Path(__file__).with_name("device_engine_rank.py"), 2)


def test_host_tensors_travel_over_gloo_where_the_group_has_nccl_alone(reports: Reports) -> None:
    assert [report["nccl_alone"] for report in reports] == [True, True]


def test_what_one_rank_cannot_have_is_an_error_on_all(reports: Reports) -> None:
    reason = 'CompressionPolicy(kernels="device"): the process group has gloo, not NCCL'
    assert [report["refused"] for report in reports] == [f"rank 1 could not begin: {reason}", reason]


def test_no_rank_opens_an_engine_while_one_records_a_graph(reports: Reports) -> None:
    error = "an engine cannot open while a CUDA graph is recorded: open the engine before"
    assert [report["recorded"] for report in reports] == [f"rank 1 could not begin: {error}", error]


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
        open_engine(Worker(0, 2), None, NETWORK, ON_DEVICE)


@pytest.mark.parametrize(
    ("kernels", "gradients_on", "chosen"),
    [
        ("auto", GPU, None),
        ("auto", CPU, None),
        ("auto", None, None),
        ("host", GPU, None),
        ("device", GPU, GPU),
        ("device", torch.device("cuda"), torch.device("cuda", 1)),
    ],
)
def test_with_servers_the_model_says_where_gradients_are(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kernels: str,
    gradients_on: torch.device | None,
    chosen: torch.device | None,
) -> None:
    monkeypatch.setattr(choice, "triton_lacks", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    policy = CompressionPolicy(kernels=kernels)  # type: ignore[arg-type]
    for group, lines in ((ANOTHER, 0), (SOMEBODY, 1), (None, 2)):
        assert choice.device_of(group, ServerCodes(), policy, gradients_on) == chosen
        warned = [line for line in caplog.messages if "are copied to host memory" in line]
        assert len(warned) == lines * (kernels == "auto" and gradients_on == GPU), "one line of rank 0"


@pytest.mark.parametrize("case", RANK_CASES)
def test_ranks_choose_kernels_together(reports: Reports, case: str) -> None:
    """A rank whose GPU cannot compress takes all ranks to the host, and rank 0 alone warns, once."""
    chosen, warnings = zip(*(report["agreed"][case] for report in reports), strict=True)
    assert list(chosen) == RANK_CASES[case]
    warned = {"other bits": 1, "no Triton": 1, "the host": 0}
    assert [len(texts) for texts in warnings] == [int(case in warned), 0]
    if case in warned:
        assert f"because of rank {warned[case]}: " in warnings[0][0]
        assert "Plain DDP is faster, unless nodes have a slow network between them" in warnings[0][0]


def test_a_device_that_hangs_or_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Mock(**{"return_value.query.return_value": False}))
    with pytest.raises(DeadlineError, match=r'within 0.01 s: .* CompressionPolicy\(kernels="host"\)'):
        self_check.finish(GPU, 0.01)
    monkeypatch.setattr(self_check, "_different", Mock(side_effect=RuntimeError("Failed to find C compiler")))
    assert "Failed to find C compiler" in (self_check.fault_of(CPU, RankCodes()) or "")
    monkeypatch.setattr(self_check, "finish", Mock(side_effect=RuntimeError("CUDA error")))
    with pytest.raises(RuntimeError, match="CUDA error"):
        self_check.fault_of(CPU, RankCodes())


@pytest.mark.parametrize(
    ("version", "error"),
    [
        ("3.6.0", None),
        ("3.10.0+git1234", None),
        ("4.0", None),
        ("3.5.1", "Triton 3.5.1 is too old: pip install 'torch>=2.10' 'triton>=3.6'"),
        (ModuleNotFoundError(name="triton"), "Triton is not installed: pip install 'triton>=3.6'"),
        (ImportError("libc 2.34"), "Triton is installed, but does not load (ImportError: libc 2.34): mend the cause"),
        (ModuleNotFoundError(name="numpy"), "Triton is installed, but does not load (ModuleNotFoundError: "),
    ],
)
def test_an_error_says_why_triton_is_of_no_use(
    monkeypatch: pytest.MonkeyPatch, version: str | ImportError, error: str | None
) -> None:
    def import_module(name: str) -> Any:
        del name
        if isinstance(version, ImportError):
            raise version
        return Mock(__version__=version)

    monkeypatch.setattr(choice, "backends", lambda _: ["nccl"])
    monkeypatch.setattr(importlib, "import_module", import_module)
    if error is None:
        assert choice.device_of(SOMEBODY, None, ON_DEVICE, GPU) == GPU
        return
    with pytest.raises(ConfigurationError, match=re.escape(error)):
        choice.device_of(SOMEBODY, None, ON_DEVICE, GPU)
