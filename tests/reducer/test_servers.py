"""ThcReducer through thc-ps, in processes that torch.distributed does not know."""

from pathlib import Path

import pytest
import torch
from known_gradients import gradients

from byteps_thc import NetworkConfig, ThcReducer
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.launch import ParameterServer
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("worker.py")
SHAPES = {"a": (5,), "b": (40, 100), "c": (1 << 20, 1)}


def test_workers_without_a_process_group(thc_ps: ParameterServer, tmp_path: Path) -> None:
    reports = run_ranks(PROGRAM, 2, tmp_path, settings={"servers": [thc_ps.address]})
    first, second = reports
    for step, (averages, others) in enumerate(zip(first["averages"], second["averages"], strict=True)):
        mine, theirs = gradients(0, step, SHAPES), gradients(1, step, SHAPES)
        for name, average in averages.items():
            assert torch.equal(average, others[name])
            exact = (mine[name] + theirs[name]) / 2
            if name != "a":  # five elements, in a block with others: their share of the error may be more
                assert 0 < (average - exact).square().sum() < 0.1 * exact.square().sum(), (step, name)
    for rank, report in enumerate(reports):
        texts = report["texts"]
        text, (own, other) = texts["regrouped"], ("'b'", "'c'") if rank == 0 else ("'c'", "'b'")
        assert text.startswith("InputError: workers average different gradients: this one ("), text
        assert text.index(own) < text.index("another one") < text.index(other), text
        assert texts["nobody"].startswith(
            "ConfigurationError: ThcReducer needs a process group, or a worker's number: call torch.distributed.init"
        )
        assert "init_process_group() before ThcReducer()" in texts["no group"]
        for setting in ("warmup_steps", "bypass_elements", "stop_step"):
            assert texts[setting].startswith("ConfigurationError: warmup_steps, stop_step, bypass_elements and exclude")
        assert texts["new"].startswith("InputError: workers average different tensors. Here 1, beginning with '")
        assert report["steps"] == 5
        assert report["ratio"] > 7
        assert torch.equal(report["resumed"]["c"], first["resumed"]["c"])
        assert report["step"] == 3


def test_more_workers_than_servers_take_are_refused_before_any_is_asked() -> None:
    with pytest.raises(ConfigurationError, match="thc-ps sums for at most 64 workers, and a switch for 32, not 65"):
        ThcReducer(NetworkConfig(["127.0.0.1:1"]), worker=64, workers=65)
