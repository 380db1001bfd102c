"""Every baseline on every plug-in: it trains there, or is refused by name; docs/plugins.md says which."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_schemes import SCHEMES
from known_gradients import all_shapes, gradients
from ranks import run_ranks
from torch import Tensor

RANKS, STEPS = 2, 20
#: columns of the guide's table
PLUGINS = {
    "DDP": "ddp",
    "FSDP2": "reduce_scatter",
    "HSDP": "replicas",
    "ThcReducer": "reducer",
    "servers, switch": "network",
    "BytePS": "byteps",
}
GUIDE = Path(__file__).parents[2] / "docs/plugins.md"


def table() -> dict[tuple[str, str], bool]:
    """(plug-in, scheme) -> whether the guide says that it works."""
    header, _, *rows = re.search(r"^\| baseline \|.*?\n\n", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[0].splitlines()
    plugins = [cell.strip() for cell in header.strip("|").split("|")][1:]
    works = {}
    for row in filter(None, rows):
        names, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        for name in re.findall(r"`(\w+)", names):
            works |= {(plugin, name): cell == "yes" for plugin, cell in zip(plugins, cells, strict=True)}
            assert {"yes", "no"}.issuperset(cells), row
    return works


COMBINATIONS = [(plugin, scheme) for plugin in PLUGINS for scheme in SCHEMES]
WORKS = table()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    settings = {"schemes": SCHEMES, "steps": STEPS}
    program = Path(__file__).with_name("plugins_rank.py")
    return run_ranks(program, RANKS, tmp_path_factory.mktemp("ranks") / "plugins", settings=settings, timeout_s=115)


def works(plugin: str, scheme: str) -> bool:
    return WORKS[plugin, scheme.split()[0]]


def test_the_guide_names_every_plugin_and_scheme() -> None:
    assert {plugin for plugin, _ in WORKS} == PLUGINS.keys()
    assert {scheme for _, scheme in WORKS} == {scheme.split()[0] for scheme in SCHEMES}


@pytest.mark.parametrize(("plugin", "scheme"), [pair for pair in COMBINATIONS if works(*pair)])
def test_it_trains(reports: list[dict[str, Any]], plugin: str, scheme: str) -> None:
    """The loss falls to half at least, with the same parameters on all ranks."""
    first, second = (report[PLUGINS[plugin]][scheme] for report in reports)
    assert "error" not in first, first["error"]
    for report in (first, second):
        assert sum(report["losses"][-3:]) < sum(report["losses"][:3]) / 2
        assert report["steps"] == STEPS
    assert first["parameters"].equal(second["parameters"])


@pytest.mark.parametrize(("plugin", "scheme"), [pair for pair in COMBINATIONS if not works(*pair)])
def test_it_is_refused_by_name(reports: list[dict[str, Any]], plugin: str, scheme: str) -> None:
    """With what to use instead."""
    for report in reports:
        for text in report[PLUGINS[plugin]][scheme]["error"].splitlines():
            assert scheme.split()[0] in text
            assert re.search(r"use |leave|need a process group", text), text


@pytest.mark.parametrize(("scheme", "least", "most"), [("NoCompression", 1, 1), ("TopK", 4, 5), ("SignSgd", 10, 30)])
def test_a_reduce_scatter_sends_less(reports: list[dict[str, Any]], scheme: str, least: float, most: float) -> None:
    assert least <= reports[0]["reduce_scatter"][scheme]["ratio"] <= most


def top(shard: Tensor) -> Tensor:
    """A tenth of its coordinates, by magnitude."""
    flat = shard.reshape(-1)
    chosen = flat.abs().topk(max(1, int(0.1 * len(flat) + 0.5))).indices
    sent = torch.zeros_like(flat)
    sent[chosen] = flat[chosen]
    return sent.view_as(shard)


def test_top_k_selects_in_every_shard_and_keeps_the_rest(reports: list[dict[str, Any]]) -> None:
    """Of two steps; parameters of fewer than 100 elements are averaged exactly."""
    results = [report["shards"] for report in reports]
    residuals = [{name: torch.zeros(shape) for name, shape in all_shapes().items()} for _ in range(RANKS)]
    for step in range(2):
        own = [gradients(rank, step, all_shapes()) for rank in range(RANKS)]
        for name, shape in all_shapes().items():
            exact = torch.Size(shape).numel() < 100
            vectors = [own[rank][name] + residuals[rank][name] for rank in range(RANKS)]
            sent = [v if exact else torch.cat([top(part) for part in v.chunk(RANKS)]) for v in vectors]
            average = (sent[0] + sent[1]) / 2
            for rank, result in enumerate(results):
                torch.testing.assert_close(result["averages"][step][name], average)
                residuals[rank][name] = vectors[rank] - sent[rank]
                if not exact:
                    kept = result["residuals"][step][name]
                    torch.testing.assert_close(kept, residuals[rank][name].reshape(-1))


def test_a_nan_leaves_no_residual_anywhere(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        averages, residuals = report["shards"]["averages"][2], report["shards"]["residuals"]
        assert not averages["head"].isfinite().all()
        assert averages["first.weight"].isfinite().all()  # another parameter group
        assert residuals[2]["head"].equal(residuals[1]["head"])
        assert all(residual.isfinite().all() for residual in residuals[2].values())


def test_a_rank_without_elements(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["shards"]["majority"].equal(torch.ones(1, 1100))
