"""Blocks of 64 keep zeros, and average without bias what clips nothing."""

from __future__ import annotations

import numpy as np
import torch
from averages.averagers import make
from averages.blocks import BLOCK, TILE, Blocks, BlocksAverager, Dither, decode, encode, rotate_back
from claims.local_scales import bias, difficult_gradients


def test_a_block_of_zeros_stays_zero_beside_others() -> None:
    gradients = torch.zeros(2, 10 * BLOCK)
    gradients[:, BLOCK : 2 * BLOCK] = torch.randn(2, BLOCK, generator=torch.Generator().manual_seed(1))
    average = make(Blocks(4, 4), 2, [slice(0, 10 * BLOCK)]).average(gradients)
    assert not average[:BLOCK].any()
    assert not average[2 * BLOCK :].any()
    assert (average - gradients.mean(dim=0)).norm() < 0.3 * gradients.mean(dim=0).norm()


def test_tensors_do_not_share_blocks() -> None:
    gradients = torch.ones(2, 100)
    gradients[:, 70:] = 0
    averager = BlocksAverager(Blocks(4, 4), [slice(0, 70), slice(70, 100)])
    assert not averager.average(gradients)[70:].any()
    assert averager.bytes_both_ways == 3 * BLOCK + 2 * (TILE + 1)


def test_nothing_that_is_not_clipped_has_a_bias() -> None:
    for gradients in difficult_gradients(BLOCK * TILE).values():
        assert bias(Blocks(4, 4), gradients, 100) < 1.5


def test_blocks_far_below_their_neighbours_arrive_on_average() -> None:
    x = np.ones((TILE, BLOCK), np.float32)
    x[3] *= 2.0**-18
    random, total = np.random.default_rng(1), np.zeros((TILE, BLOCK))
    rounds = 4000
    for _ in range(rounds):
        dither = Dither.of(random, TILE)
        total += rotate_back(decode(encode(x, 4, dither), 4, dither), dither)
    assert abs(total[3].mean() / rounds / x[3, 0] - 1) < 0.2
