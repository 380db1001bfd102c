"""Errors of ranks whose settings differ."""

import pytest

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._net.handshake import first_difference, require_equal


def refusal(values: list[int]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        require_equal({rank: {"bits": bits, "seed": 7} for rank, bits in enumerate(values)})
    return str(raised.value)


def test_equal_settings_pass() -> None:
    require_equal({rank: {"bits": 4} for rank in range(1024)})


def test_a_few_ranks_are_named_one_by_one() -> None:
    assert refusal([4, 3]) == "ranks have different settings: bits is 4 on rank 0, 3 on rank 1"


def test_many_ranks_are_named_by_what_they_have() -> None:
    values = [4] * 1024
    values[700] = 3
    assert refusal(values) == (
        "ranks have different settings: bits is 4 on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1015 more, 3 on rank 700"
    )


def test_a_rank_without_lines_has_none() -> None:
    assert first_difference({0: "", 1: "a\nb"}) == (0, "none on rank 0, a on rank 1")
