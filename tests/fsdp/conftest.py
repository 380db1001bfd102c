"""Ranks that went through all cases: one launch of each kind for all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from byteps_thc._cli.launch import ParameterServer

PROGRAM = Path(__file__).with_name("sharded_rank.py")
Reports = list[dict[str, Any]]


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    settings = {"replicas": False}
    return run_ranks(PROGRAM, 2, tmp_path_factory.mktemp("two") / "ranks", settings=settings)


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    settings = {"replicas": False}
    return run_ranks(PROGRAM, 4, tmp_path_factory.mktemp("four") / "ranks", settings=settings, timeout_s=200)


@pytest.fixture(scope="session")
def two_replicas(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Of two ranks each."""
    with ParameterServer() as server:
        settings = {"replicas": True, "servers": [server.address]}
        return run_ranks(PROGRAM, 4, tmp_path_factory.mktemp("replicas") / "ranks", settings=settings, timeout_s=200)
