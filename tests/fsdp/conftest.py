"""Ranks that went through all cases: one launch of each kind for all tests."""

from pathlib import Path

import pytest
from reports import Reports, reports_of

PROGRAM = Path(__file__).with_name("sharded_rank.py")


two_ranks = reports_of(PROGRAM, 2, settings={"replicas": False}, scope="session")


four_ranks = reports_of(PROGRAM, 4, settings={"replicas": False}, scope="session", timeout_s=200)


two_replicas = reports_of(PROGRAM, 4, server=True, settings={"replicas": True}, scope="session", timeout_s=200)


@pytest.fixture(params=["two_ranks", pytest.param("four_ranks", marks=pytest.mark.slow)])
def reports(request: pytest.FixtureRequest) -> Reports:
    return request.getfixturevalue(request.param)
