"""Training that is saved, ended and resumed: by as many ranks, by half as many, by twice as many. Real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor

PROGRAM = Path(__file__).with_name("training_rank.py")
Reports = list[dict[str, Any]]
KINDS = ("fsdp", "ddp")


def launch(directory: Path, ranks: int, **settings: Any) -> Reports:
    defaults = {"load": None, "first": 0, "steps": 0, "save": None, "more": 0, "full_disk": None}
    return run_ranks(PROGRAM, ranks, directory, settings=defaults | settings, timeout_s=110)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def straight(folder: Path) -> Reports:
    """Six steps, saved after three."""
    return launch(folder / "straight", 4, steps=3, save=str(folder / "four"), more=3)


@pytest.fixture(scope="module")
def resumed(folder: Path, straight: Reports) -> Reports:
    assert len(straight) == 4
    return launch(folder / "resumed", 4, load=str(folder / "four"), first=3, steps=3)


@pytest.fixture(scope="module")
def halved(folder: Path, straight: Reports) -> Reports:
    """Two ranks take over from four, and go on for a step."""
    assert len(straight) == 4
    return launch(
        folder / "halved", 2, load=str(folder / "four"), first=3, save=str(folder / "two"), more=1,
        full_disk=str(folder / "full"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def doubled(folder: Path, halved: Reports) -> Reports:
    """Four ranks take over from the two."""
    assert len(halved) == 2
    return launch(folder / "doubled", 4, load=str(folder / "two"))


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def mean_residuals(reports: Reports, kind: str, moment: str) -> dict[str, Tensor]:
    everyone = [report[kind][moment]["residuals"] for report in reports]
    return {name: torch.stack([own[name] for own in everyone]).mean(dim=0) for name in everyone[0]}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_with_the_same_bits(straight: Reports, resumed: Reports, kind: str) -> None:
    for before, after in zip(straight, resumed, strict=True):
        for moment, counterpart in (("trained", "loaded"), ("ended", "ended")):
            old, new = before[kind][moment], after[kind][counterpart]
            assert same(old["parameters"], new["parameters"])
            assert same(old["residuals"], new["residuals"])
            assert (old["step"], old["round"]) == (new["step"], new["round"])


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_ranks_keep_the_pending_update(straight: Reports, halved: Reports, kind: str) -> None:
    wanted, kept = mean_residuals(straight, kind, "trained"), mean_residuals(halved, kind, "loaded")
    torch.testing.assert_close(kept, wanted)
    assert sum(float(residual.abs().sum()) for residual in wanted.values()) > 0
    first_two = [straight[rank][kind]["trained"]["residuals"] for rank in (0, 1)]
    for name, residual in halved[0][kind]["loaded"]["residuals"].items():
        torch.testing.assert_close(residual, (first_two[0][name] + first_two[1][name]) / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_more_ranks_keep_the_pending_update(halved: Reports, doubled: Reports, kind: str) -> None:
    torch.testing.assert_close(mean_residuals(doubled, kind, "loaded"), mean_residuals(halved, kind, "trained"))
    for rank, report in enumerate(doubled):
        assert same(report[kind]["loaded"]["residuals"], halved[rank // 2][kind]["trained"]["residuals"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rescaled_run_goes_on(halved: Reports, kind: str) -> None:
    for report in halved:
        assert same(report[kind]["ended"]["parameters"], halved[0][kind]["ended"]["parameters"])
        assert report[kind]["ended"]["step"] == report[kind]["loaded"]["step"] + 1
        assert not same(report[kind]["ended"]["parameters"], report[kind]["loaded"]["parameters"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_an_error_and_changes_nothing(halved: Reports, kind: str) -> None:
    for report in halved:
        result = report[kind]["full_disk"]
        assert "saved" not in result["saved"]
        assert "not a checkpoint, or an unfinished one" in result["loaded"]
        for part in ("parameters", "residuals"):
            assert same(result["before"][part], result["after"][part])
