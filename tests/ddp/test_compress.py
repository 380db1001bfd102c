"""byteps_thc.ddp.compress() and ThcState: equal bits on all ways, errors of wrong use, states before a group, names."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from reports import Reports, reports_of
from torch import nn

from byteps_thc import ConfigurationError
from byteps_thc.ddp import thc_hook
from byteps_thc.ddp.bucket_buffers import parameter_names
from byteps_thc.ddp.state import UncompressedState
from thc_lab.ranks import run_ranks

WHAT_TO_WRITE = {
    "hook: None": "registered with None as its state, not a ThcState: call byteps_thc.ddp.compress(ddp)",
    "hook: ServerCodes": "with a ServerCodes as its state",
    "hook: class": "with the class ThcState as its state",
    "hook: PowerSGDState": "with a PowerSGDState as its state",
    "state: mesh": "get_group('replicate')) averages over that dimension, ThcState(None, levels=(mesh, 'replicate'))",
    "state: mesh dimension": "not a DeviceMesh: ThcState(mesh.get_group())",
    "reducer: mesh": "not a DeviceMesh: ThcReducer(mesh.get_group('replicate'))",
    "state: ServerCodes": "not a ServerCodes: ThcState(torch.distributed.new_group(ranks))",
    "state: model": "not a Linear: ThcState(None), or byteps_thc.ddp.compress(ddp)",
    "state: ranks": "not a list: ThcState(torch.distributed.new_group(ranks))",
    "state: log_every": "log_every",
    "compress: plain model": "not a Linear: compress(DistributedDataParallel(model)). byteps_thc.fsdp",
    "compress: twice": "has a communication hook already",
    "compress: unknown setting": "bit: RankCodes has no such setting, did you mean bits?",
    "compress: variable beside keywords": "THC_CONFIG: bit: there is no such setting, did you mean bits",
    "compress: setting of servers": "NetworkConfig and Compression.thc, codes=ServerCodes(granularity=...)",
    "fsdp: setting of servers": "ServerCodes(rounding=...); of FSDP2's functions, compress_replicas() alone takes",
    "compress: policy's setting": "a setting of CompressionPolicy, policy=CompressionPolicy(warmup_steps=...)",
    "compress: keyword beside a network": "bits: codes of ranks, not of servers: pass NetworkConfig(codes=ServerCodes(",
    "reducer: keyword beside a network": "down_bits: codes of ranks, not of servers: pass NetworkConfig(codes=",
    "fsdp: down_bits": "down_bits has no effect in this call: omit it",
    "compress: policy": "policy is a dict: pass CompressionPolicy(warmup_steps=100)",
    "compress: network": 'network is a str: pass NetworkConfig(["10.0.0.1"])',
    "compress: grad_scaler": "grad_scaler is a bool: pass the GradScaler of the training",
    "compress: log_every": "log_every must be 0 (never) or a number of steps, not 'often'",
    "fsdp: model": "the first argument is the model, not None",
    "hsdp: mesh": 'the second argument is the mesh, not a ServerCodes: pass mesh["replicate"]',
}


reports = reports_of(Path(__file__).with_name("wrong_use_rank.py"), 2, timeout_s=200)


def test_all_ways_to_compress_give_the_same_bits(reports: Reports) -> None:
    gradients = [gradient for report in reports for gradient in report["same"]["gradients"]]
    assert all(gradient.equal(gradients[0]) for gradient in gradients)
    assert reports[0]["same"]["bits"] == 2


@pytest.mark.parametrize("what", WHAT_TO_WRITE)
def test_wrong_use_says_what_to_write(reports: Reports, what: str) -> None:
    for report in reports:
        assert report["said"][what].startswith("ConfigurationError: ")
        assert WHAT_TO_WRITE[what] in report["said"][what]


def test_a_rank_outside_of_the_group_is_told_so(reports: Reports) -> None:
    first, second = (report["said"]["state: not in group"] for report in reports)
    assert first == ""
    assert second == "ConfigurationError: this rank is not in the process group: call ThcState on its ranks only"


def test_a_state_made_before_the_process_group_averages_as_one_made_after(tmp_path: Path) -> None:
    for report in run_ranks(Path(__file__).with_name("early_rank.py"), 2, tmp_path):
        assert all(own.equal(same) for own, same in zip(report["own"], report["same"], strict=True))
        assert (report["steps"], report["counted"]) == (1, 1)
        assert report["said"] == {
            "early": "ThcState(not used yet, RankCodes(bits=2, down_bits=None, seed=0, partition_bytes=9437184))",
            "opened": "ThcState(flat, 2 ranks, RankCodes(bits=2, down_bits=None, seed=0, partition_bytes=9437184))",
            "state_dict": "call torch.distributed.init_process_group() before ThcState()",
        }
        assert report["model_is_gone"]


class Wrapper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.weight = nn.Parameter(torch.zeros(2))


def test_attributes_that_look_like_wrappers_keep_their_names() -> None:
    assert list(parameter_names(Wrapper()).values()) == ["weight", "module.weight", "module.bias"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.compile's own imports
def test_compiled_models_and_parts_have_plain_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    names = list(parameter_names(model).values())
    model[1] = torch.compile(model[1])
    assert list(parameter_names(torch.compile(model)).values()) == names


def test_the_python_reducer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="python_reducer"):
        thc_hook(cast(Any, UncompressedState()), (torch.zeros(3), torch.zeros(3)))
