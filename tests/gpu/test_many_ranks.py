"""Many ranks in one process, in Triton's interpreter: the program as on a GPU, without streams."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.slow
def test_buckets_meshes_and_rows_have_the_bits_of_numpy(interpret: Callable[..., str]) -> None:
    assert "same bits: 4 checks" in interpret("many_ranks.py")
