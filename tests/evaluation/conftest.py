"""Programs that these tests start import packages of evaluation and tests/lib, as `make evaluate` has them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package", autouse=True)
def searched() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "evaluation"))
        yield
