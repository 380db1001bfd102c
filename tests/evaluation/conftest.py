"""Programs that these tests start import evaluation's packages and those of tests/lib, as `make evaluate` has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package", autouse=True)
def searched() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "evaluation"), str(ROOT / "tests/lib")]))
        yield
