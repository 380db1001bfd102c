"""byteps_thc.ddp.compress(), and what is said of wrong states and first arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

WHAT_TO_WRITE = {
    "hook: None": "registered with None as its state, not a ThcState: call byteps_thc.ddp.compress(ddp)",
    "hook: ThcConfig": "with a ThcConfig as its state",
    "hook: class": "with the class ThcState as its state",
    "hook: PowerSGDState": "with a PowerSGDState as its state",
    "state: mesh": "get_group('replicate')) averages over that dimension, ThcState(None, levels=(mesh, 'replicate'))",
    "state: mesh dimension": "not a DeviceMesh: ThcState(mesh.get_group())",
    "reducer: mesh": "not a DeviceMesh: ThcReducer(mesh.get_group('replicate'))",
    "state: ThcConfig": "not a ThcConfig: ThcState(None, ThcConfig(...))",
    "state: model": "not a Linear: ThcState(None), or byteps_thc.ddp.compress(ddp)",
    "state: ranks": "not a list: ThcState(torch.distributed.new_group(ranks))",
    "state: class": "config is the class ThcConfig: pass ThcConfig(...)",
    "state: bits": "config is an int: pass ThcConfig(...)",
    "state: log_every": "log_every",
    "reducer: ThcConfig": "not a ThcConfig: ThcReducer(None, ThcConfig(...))",
    "compress: plain model": "not a Linear: compress(DistributedDataParallel(model)). byteps_thc.fsdp",
    "compress: twice": "has a communication hook already",
    "compress: config and settings": "bits: pass settings in the ThcConfig(...) or as keywords, not both",
    "compress: unknown setting": "bit: ThcConfig has no such setting, did you mean bits?",
    "compress: variable beside keywords": "THC_CONFIG: bit: there is no such setting, did you mean bits",
    "compress: variable beside a config": "THC_CONFIG: bit: there is no such setting, did you mean bits",
    "compress: setting of servers": "granularity, error_feedback: only for servers and switches: omit, or pass",
    "fsdp: setting of servers": "rounding: only for servers and switches",
    "reducer: setting of servers": "granularity, p, error_feedback, rounding: only for servers and switches",
    "compress: policy's setting": "a setting of the policy: policy=CompressionPolicy(warmup_steps=...)",
    "compress: policy": "policy is a dict: pass CompressionPolicy(warmup_steps=100)",
    "compress: network": 'network is a str: pass NetworkConfig(["10.0.0.1"])',
    "compress: grad_scaler": "grad_scaler is a bool: pass the GradScaler of the training",
    "compress: log_every": "log_every must be 0 (never) or a number of steps, not 'often'",
    "reducer: policy": "policy is an int: pass CompressionPolicy(",
    "fsdp: policy": "policy is a dict: pass CompressionPolicy(",
    "fsdp: model": "the first argument is the model, not None",
    "hsdp: mesh": 'the second argument is the mesh, not a ThcConfig: pass mesh["replicate"]',
    "fsdp: config and settings": "bits: pass settings in the ThcConfig(...) or as keywords, not both",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    program = Path(__file__).with_name("wrong_use_rank.py")
    return run_ranks(program, 2, tmp_path_factory.mktemp("ranks") / "wrong", timeout_s=200)


def test_all_ways_to_compress_give_the_same_bits(reports: list[dict[str, Any]]) -> None:
    gradients = [gradient for report in reports for gradient in report["same"]["gradients"]]
    assert all(gradient.equal(gradients[0]) for gradient in gradients)
    assert reports[0]["same"]["bits"] == 2


@pytest.mark.parametrize("what", WHAT_TO_WRITE)
def test_wrong_use_says_what_to_write(reports: list[dict[str, Any]], what: str) -> None:
    for report in reports:
        assert report["said"][what].startswith("ConfigurationError: ")
        assert WHAT_TO_WRITE[what] in report["said"][what]


def test_a_rank_outside_of_the_group_is_told_so(reports: list[dict[str, Any]]) -> None:
    first, second = (report["said"]["state: not in group"] for report in reports)
    assert first == "nothing"
    assert second == "ConfigurationError: this rank is not in the process group: call ThcState on its ranks only"
