"""Ranks that went through all cases: one launch of each number of ranks for all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from byteps_thc.tools.launch import ParameterServer

PROGRAM = Path(__file__).with_name("sharded_rank.py")
Reports = list[dict[str, Any]]


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return run_ranks(PROGRAM, 2, tmp_path_factory.mktemp("two") / "ranks", settings={"cases": None})


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    with ParameterServer() as server:
        settings = {"cases": None, "servers": [server.address]}
        return run_ranks(PROGRAM, 4, tmp_path_factory.mktemp("four") / "ranks", settings=settings, timeout_s=110)
