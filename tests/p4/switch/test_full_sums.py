"""Sums that fill their 8 bits to the last, and jobs whose sums would not fit."""

import numpy as np
import pytest
from switch_lab.jobs import CODES_PER_PACKET, Job
from switch_lab.lab import Lab


@pytest.fixture
def full(target) -> Lab:
    """17 workers, the most whose codes may all be used: 17 * 15 = 255."""
    return Lab(target, [Job.make(1, 17, target.front_ports, granularity=15)])


def test_sums_of_255_beside_others(full):
    """Every third sum is full; those beside it keep their sums."""
    codes = np.random.default_rng(6).integers(0, 16, (17, CODES_PER_PACKET), dtype=np.uint8)
    codes[:, ::3] = 15
    (result, *_) = full.push(full.job, codes)
    assert set(result[::3]) == {255}
    assert result == full.job.sum(codes)


def test_first_byte_of_a_word_does_not_carry_out(full):
    """The sums in the most significant byte of a word are full, the others empty, and the other way round."""
    for first in (0, 1):
        codes = np.zeros((17, CODES_PER_PACKET), np.uint8)
        codes[:, first::4] = 15
        (result, *_) = full.push(full.job, codes, round=1 + first)
        assert result == full.job.sum(codes)


def test_as_many_workers_as_a_switch_has_places(target):
    """32 workers with a granularity of 7; larger codes, which workers should not send, add no more than 7."""
    lab = Lab(target, [Job.make(1, 32, target.front_ports, granularity=7)])
    codes = np.random.default_rng(7).integers(0, 16, (32, CODES_PER_PACKET), dtype=np.uint8)
    codes[:, ::3] = 7
    (result, *_) = lab.push(lab.job, codes)
    assert set(result[::3]) == {32 * 7}
    assert result == lab.job.sum(codes)
