"""Training that is saved, ended and resumed: by as many ranks, by half as many, by twice as many. Real ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor

from byteps_thc._cli.launch import ParameterServer

# Ranks are launched twice for the first test, and both launches may take as long as they are given.

PROGRAM = Path(__file__).with_name("training_rank.py")
Reports = list[dict[str, Any]]
KINDS = ("fsdp", "ddp", "server")


def launch(server: Server, directory: Path, ranks: int, **runs: dict[str, Any]) -> dict[str, Reports]:
    """Return every rank's report of each run."""
    defaults = {"load": None, "first": 0, "steps": 0, "save": None, "more": 0, "full_disk": None}
    settings = {"server": server.address, "job": next(server.jobs) * 10}
    settings["runs"] = {name: defaults | run for name, run in runs.items()}
    everyone = run_ranks(PROGRAM, ranks, directory, settings=settings, timeout_s=260)
    return {name: [report[name] for report in everyone] for name in runs}


class Server(ParameterServer):
    """A thc-ps, and numbers for its jobs."""

    jobs = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def two_ranks(server: Server, folder: Path) -> Reports:
    """Two steps, then saved."""
    return launch(server, folder / "two_ranks", 2, small={"steps": 2, "save": str(folder / "two")})["small"]


@pytest.fixture(scope="module")
def four_ranks(server: Server, folder: Path, two_ranks: Reports) -> dict[str, Reports]:
    """Six steps, saved after three; the last three again from there; then four ranks take over from two."""
    assert len(two_ranks) == 2
    four = str(folder / "four")
    return launch(
        server,
        folder / "four_ranks",
        4,
        straight={"steps": 3, "save": four, "more": 3},
        resumed={"load": four, "first": 3, "steps": 3},
        doubled={"load": str(folder / "two")},
    )


@pytest.fixture(scope="module")
def straight(four_ranks: dict[str, Reports]) -> Reports:
    return four_ranks["straight"]


@pytest.fixture(scope="module")
def halved(server: Server, folder: Path, straight: Reports) -> Reports:
    """Two ranks take over from four, in new processes, and go on for a step."""
    assert len(straight) == 4
    halved = {"load": str(folder / "four"), "first": 3, "more": 1, "full_disk": str(folder / "full")}
    return launch(server, folder / "halved", 2, halved=halved)["halved"]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_with_the_same_bits(four_ranks: dict[str, Reports], kind: str) -> None:
    for before, after in zip(four_ranks["straight"], four_ranks["resumed"], strict=True):
        for moment, counterpart in (("trained", "loaded"), ("ended", "ended")):
            old, new = before[kind][moment], after[kind][counterpart]
            assert same(old["parameters"], new["parameters"])
            assert same(old["residuals"], new["residuals"])
            assert (old["step"], old["round"]) == (new["step"], new["round"])


@pytest.mark.parametrize("kind", KINDS)
def test_other_numbers_of_ranks_keep_counters_alone(
    two_ranks: Reports, four_ranks: dict[str, Reports], halved: Reports, kind: str
) -> None:
    for before, after in ((two_ranks, four_ranks["doubled"]), (four_ranks["straight"], halved)):
        saved = before[0][kind]["trained"]
        assert bool(saved["residuals"]) == (kind == "server")
        for report in after:
            loaded = report[kind]["loaded"]
            assert (loaded["residuals"], loaded["step"], loaded["round"]) == ({}, saved["step"], saved["round"])


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


def test_an_error_on_one_rank_is_an_error_on_all(halved: Reports) -> None:
    kind = "server"
    others, own = (report[kind]["one_fails"]["errors"] for report in halved)
    assert own[0].startswith("ConfigurationError: residuals in the checkpoint of parameters the model does not have")
    assert others[0].startswith("CheckpointError: rank 1 could not load, so no rank has: residuals in the checkpoint")
    assert own[1] == "ConfigurationError: this is no state"
    assert others[1] == "CheckpointError: rank 1 could not take over the state, others have: this is no state"
    for report in halved:
        result = report[kind]["one_fails"]
        for part in ("parameters", "residuals"):
            assert same(result["before"][part], result["after"][part])


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_residuals_are_dropped_aloud_where_nothing_is_kept(halved: Reports, kind: str) -> None:
    for report in halved:
        dropped = ["error feedback is off: the checkpoint's residuals are dropped"]
        assert report[kind]["of a server"] == ["loaded", dropped]
