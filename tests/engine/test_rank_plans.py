"""How gradients among ranks are cut: pieces, shards, random keys, and what is not compressed."""

from __future__ import annotations

import itertools
import types
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from byteps_thc import ThcConfig
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice, ShardMatrix
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.ranks import plan as plans
from byteps_thc._engine.ranks.plan import PiecePlan, piece_plans
from byteps_thc._scheme.block_plan import RowSpan
from byteps_thc._scheme.rank_settings import RankSettings
from byteps_thc._scheme.shares import block_ends, blocks_of, share_out

CPU = torch.device("cpu")
RANKS = 4
SIZES = (5000, 30, 9000)
SETTINGS = RankSettings.of(ThcConfig(partition_bytes=1 << 14, rotation_block=512), RANKS)


def plans_of_buffer() -> list[PiecePlan]:
    ends = [*itertools.accumulate(SIZES)]
    parts = tuple(
        ParameterSlice(f"p{place}", end - size, end) for place, (size, end) in enumerate(zip(SIZES, ends, strict=True))
    )
    buffer = GradientBuffer("b", torch.zeros(ends[-1]), parts)
    return [*piece_plans(Layout.of_buffer(buffer, CompressionPolicy(), CPU, None), SETTINGS)]


def test_shards_follow_each_other_in_their_piece() -> None:
    plans = plans_of_buffer()
    assert len(plans) > 2
    for plan in plans:
        cuts = [shard.columns.start for shard in plan.shards] + [plan.shards[-1].columns.stop]
        assert cuts == sorted(cuts)
        assert (cuts[0], cuts[-1]) == (0, plan.span.stop - plan.span.start)
        assert [shard.columns.stop for shard in plan.shards] == cuts[1:]
        assert [shard.blocks.coordinates for shard in plan.shards] == np.diff(cuts).tolist()
    assert [plan.span.start for plan in plans[1:]] == [plan.span.stop for plan in plans[:-1]]


def test_each_exact_value_is_in_one_shard() -> None:
    exact = [plan for plan in plans_of_buffer() if plan.exact]
    assert sum(shard.exact.stop - shard.exact.start for plan in exact for shard in plan.shards) == SIZES[1]
    for plan in exact:
        columns = [column for start, stop in plan.exact for column in range(start, stop)]
        for shard in plan.shards:
            assert all(shard.columns.start <= column < shard.columns.stop for column in columns[shard.exact])


def test_all_pieces_have_the_key_of_the_gradient() -> None:
    """Else averages would depend on how it is cut."""
    keys = {shard.tensor for plan in plans_of_buffer() for shard in plan.shards}
    assert keys == {zlib.crc32(f"b[0:{sum(SIZES)}]".encode())}


@pytest.mark.parametrize("name", ["random_key", "blocks_of", "cut_blocks", "share_out"])
def test_other_keys_and_shares_are_of_another_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks compare the identity before they write an average."""
    others: dict[str, Callable[..., Any]] = {
        "random_key": lambda name: plan.random_key(name) ^ 1,
        "blocks_of": lambda columns, ranks, largest, *rest: plan.blocks_of(columns, ranks, largest // 2, *rest),
        "cut_blocks": lambda blocks, pieces: plan.cut_blocks(blocks, pieces + 1),
        "share_out": lambda key, blocks, exact, ranks: plan.share_out(key, blocks, exact, ranks)[::-1],
    }
    own, other = plans_of_buffer(), others[name]
    plan = types.SimpleNamespace(**vars(plans))
    monkeypatch.setattr(plans, name, other)
    assert {each.identity[3] for each in plans_of_buffer()}.isdisjoint(each.identity[3] for each in own)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_shards_end_at_the_block_that_is_nearest_to_an_even_cut(ranks: int) -> None:
    blocks = blocks_of(10_000, ranks, 8192, [], [])
    ends = np.cumsum([shard.blocks.padded for shard in share_out(1, blocks, [], ranks)])
    even = blocks.padded / ranks * np.arange(1, ranks + 1)
    assert np.abs(ends - even).max() <= blocks.array()[:, 2].max() / 2


def test_blocks_end_with_rows_of_which_the_first_begins_in_another_shard() -> None:
    ends = block_ends(300, [(0, 10), (10, 200)], [RowSpan(10, 200, 50, skipped=20)])
    assert ends is not None
    assert ends.tolist() == [10, 40, 90, 140, 190, 200]


def test_rows_of_a_reduce_scatter_have_keys_and_padding_of_their_own() -> None:
    columns, ends = 1045, (1042, 1030)
    compressed = tuple(
        ParameterSlice(f"p{number}", row * columns + start, row * columns + min(stop, ends[row]))
        for row in range(2)
        for number, (start, stop) in enumerate(((0, 512), (542, 1042)))
    )
    matrix = ShardMatrix("m", 2, columns, compressed, exact=((512, 542),), parameters=("p0", "p1", "small"))
    settings = RankSettings.of(ThcConfig(), 2, sharded=True)
    [plan] = piece_plans(Layout.of_matrix(matrix, torch.float32, CPU), settings)
    assert [shard.tensor for shard in plan.shards] == [zlib.crc32(f"m[{row},0:1045]".encode()) for row in range(2)]
    not_compressed = [{column for span in spans for column in range(*span)} for spans in plan.holes]
    assert not_compressed == [{*range(512, 542), *range(end, columns)} for end in ends]
