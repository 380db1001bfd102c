"""Two real ranks, and a thc-ps whose packets get lost: replicas drift, and are made identical again."""

from pathlib import Path
from typing import Any

import torch
from reports import Reports, reports_of
from same_values import assert_same

reports = reports_of(Path(__file__).with_name("synchronization_rank.py"), 2, server=True, timeout_s=240)


def of(reports: Reports, case: str) -> tuple[Any, Any]:
    return reports[0][case], reports[1][case]


def test_replicas_that_drift_are_made_identical(reports: Reports) -> None:
    first, second = of(reports, "losses")
    different = [name for name in first["before"] if not torch.equal(first["before"][name], second["before"][name])]
    assert any("weight" in name for name in different)
    assert any("exp_avg" in name for name in different)
    assert any("running_mean" in name for name in different)
    assert_same(first["before"], first["after"])
    assert_same(first["after"], second["after"])
    assert first["residuals kept"]
    assert second["residuals kept"]
    assert any(not torch.equal(first["residuals"][name], second["residuals"][name]) for name in first["residuals"])


def test_missing_contributions_are_counted(reports: Reports) -> None:
    for report in of(reports, "losses"):
        # A contribution arrives when neither it nor the sum is lost: 19 % do not, of some 100 packets of two workers.
        assert report["expected"] >= 2 * 6 * 90
        assert 0.02 < report["missing"] / report["expected"] < 0.5


def test_synchronize_every(reports: Reports) -> None:
    first, second = of(reports, "counted")
    assert first["done"] == second["done"] == [False, True, False, True, False, True, False]
    same = [
        all(torch.equal(ours[name], theirs[name]) for name in ours)
        for ours, theirs in zip(first["weights"], second["weights"], strict=True)
    ]
    assert same == [False, True, False, True, False]
    lines = [line for line in first["lines"] if "synchronised" in line]
    assert len(lines) == 2
    assert "step 2: parameters synchronised (every 2 steps)" in lines[0]
    assert not [line for line in second["lines"] if "synchronised" in line]


def test_tensors_of_all_kinds(reports: Reports) -> None:
    first, second = of(reports, "kinds")
    assert not torch.equal(first["before"]["turned"], second["before"]["turned"])
    for name in ("turned", "short", "special", "scalar", "empty", "big", "count", "mask", "spectrum"):
        assert torch.equal(first["before"][name], first["after"][name]), name
        assert torch.equal(first["after"][name], second["after"][name]), name
    assert first["in place"]
    assert second["in place"]


def test_optimizer_states(reports: Reports) -> None:
    first, second = of(reports, "optimizers")
    assert len(first) == 8
    for name, report in first.items():
        assert_same(report["root"], report["state"])
        assert_same(report["state"], second[name]["state"])
        assert bool(report["state"]["state"]) == name.endswith("root"), name


def test_state_keeps_its_dtype(reports: Reports) -> None:
    first, second = of(reports, "states_that_keep_their_dtype")
    assert first["master"].dtype == torch.float32
    assert_same(first, second)
    assert first["extra"] == {"numbers": [1, 2.5, None, (True, "text")], 3: 0}


def test_grad_scaler(reports: Reports) -> None:
    assert [report["scale"] for report in of(reports, "scaler")] == [32.0, 32.0]


def test_warning_where_nobody_synchronises(reports: Reports) -> None:
    first, second = of(reports, "warning")
    warned = {name: [line for line in lines if "ParameterSynchronizer" in line] for name, lines in first.items()}
    wanted = {"loss": 1, "quorum": 1, "synchronised": 0, "exact": 0, "ranks": 0, "ddp": 1}
    assert {name: len(lines) for name, lines in warned.items()} == wanted
    assert "nothing has synchronised them in 3 steps" in warned["loss"][0]
    assert not [line for lines in second.values() for line in lines if "ParameterSynchronizer" in line]


def test_reducer(reports: Reports) -> None:
    first, second = of(reports, "reducer")
    assert not torch.equal(first["before"]["weight"], second["before"]["weight"])
    assert_same(first["before"], second["after"])


def test_refusals_are_the_same_on_all_ranks(reports: Reports) -> None:
    first, second = of(reports, "refusals")
    for name, text in first.items():
        assert text.startswith("ConfigurationError: "), (name, text)
        assert second[name].startswith("ConfigurationError: "), (name, second[name])
    for report in (first, second):
        assert "synchronize_every is 3 on rank 0, 4 on rank 1" in report["every"]
        assert "steps is 8 on rank 0, 7 on rank 1" in report["steps"]
        assert "weight: torch.float32 [40, 40] on rank 0, weight: torch.float32 [41, 40] on rank 1" in report["model"]
        assert "groups: [2] on rank 0, parameters of the optimizer's groups: [1, 1] on rank 1" in report["groups"]
        assert "none on rank 0, the optimizer is torch.optim.sgd.SGD on rank 1" in report["optimizer on one"]
        classes = "the optimizer is torch.optim.sgd.SGD on rank 0, the optimizer is torch.optim.adam.Adam on rank 1"
        assert f"ConfigurationError: ranks have different models or optimizers: {classes}" in report["class"]
        assert "the state of MasterWeights cannot be copied to other ranks: it has an object" in report["object"]
        assert "step() needs synchronize_every" in report["nothing"]
        assert "synchronize_every must be 1 step or more, not 0" in report["zero"]
        assert "synchronize_every must be 1 step or more, not 0.5" in report["no number"]
        assert "the model, not a dict" in report["not a model"]
        assert "optimizer is a Linear" in report["not an optimizer"]
        assert "compression is a ServerCodes" in report["not a handle"]
        assert '{"steps": a number}' in report["not a state"]
