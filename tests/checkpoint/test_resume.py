"""Training that is saved, ended and resumed by as many ranks, and by half as many. Real ranks."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reports import Reports
from same_values import assert_same

from byteps_thc._cli.launch import ParameterServer
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("training_rank.py")
KINDS = ("fsdp", "ddp", "server")


def launch(server: "Server", directory: Path, ranks: int, **runs: dict[str, Any]) -> dict[str, Reports]:
    """Return every rank's report of each run."""
    defaults = {"load": None, "first": 0, "steps": 0, "save": None, "more": 0, "errors": False}
    settings = {"server": server.address, "job": next(server.jobs) * 10}
    settings["runs"] = {name: defaults | run for name, run in runs.items()}
    everyone = run_ranks(PROGRAM, ranks, directory, settings=settings, timeout_s=260)
    return {name: [report[name] for report in everyone] for name in runs}


class Server(ParameterServer):
    jobs = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def four_ranks(server: Server, folder: Path) -> dict[str, Reports]:
    """Six steps, saved after three; the last three again from there."""
    four = str(folder / "four")
    return launch(
        server,
        folder / "four_ranks",
        4,
        straight={"steps": 3, "save": four, "more": 3},
        resumed={"load": four, "first": 3, "steps": 3},
    )


@pytest.fixture(scope="module")
def halved(server: Server, folder: Path, four_ranks: dict[str, Reports]) -> Reports:
    """Two ranks take over from four, in new processes, and train for a step."""
    assert len(four_ranks) == 2
    halved = {"load": str(folder / "four"), "first": 3, "more": 1, "errors": True}
    return launch(server, folder / "halved", 2, halved=halved)["halved"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_with_the_same_bits(four_ranks: dict[str, Reports], kind: str) -> None:
    for before, after in zip(four_ranks["straight"], four_ranks["resumed"], strict=True):
        for moment, counterpart in (("trained", "loaded"), ("ended", "ended")):
            old, new = before[kind][moment], after[kind][counterpart]
            assert_same(old, new)


@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_ranks_resumes_with_counters_alone(
    four_ranks: dict[str, Reports], halved: Reports, kind: str
) -> None:
    saved = four_ranks["straight"][0][kind]["trained"]
    assert bool(saved["residuals"]) == (kind == "server")
    for report in halved:
        loaded, ended = report[kind]["loaded"], report[kind]["ended"]
        assert (loaded["residuals"], loaded["step"], loaded["round"]) == ({}, saved["step"], saved["round"])
        assert_same(ended["parameters"], halved[0][kind]["ended"]["parameters"])
        assert ended["step"] == loaded["step"] + 1
        assert not all(ended["parameters"][name].equal(before) for name, before in loaded["parameters"].items())


def test_an_error_on_one_rank_is_an_error_on_all(halved: Reports) -> None:
    kind = "server"
    others, own = (report[kind]["one_fails"]["errors"] for report in halved)
    assert own[0].startswith("ConfigurationError: residuals in the checkpoint of parameters the model does not have")
    assert others[0].startswith("CheckpointError: rank 1 could not load, so no rank has: residuals in the checkpoint")
    assert own[1] == "ConfigurationError: this is no state"
    assert others[1] == "CheckpointError: rank 1 could not take over the state, others have: this is no state"
    for report in halved:
        assert_same(report[kind]["one_fails"]["before"], report[kind]["one_fails"]["after"])


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_residuals_are_dropped_aloud_where_nothing_is_kept(halved: Reports, kind: str) -> None:
    for report in halved:
        dropped = ["error feedback is off: the checkpoint's residuals are dropped"]
        assert report[kind]["of a server"] == ["loaded", dropped]
