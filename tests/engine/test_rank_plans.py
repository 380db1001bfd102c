"""Cuts of gradients: pieces; among ranks blocks, shards, random keys, and exact values."""

import itertools
import types
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from byteps_thc._engine.decoding import plan as plans
from byteps_thc._engine.decoding.plan import PiecePlan, piece_plans
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice, ShardMatrix
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._native import _core
from byteps_thc._scheme.block_plan import RowSpan
from byteps_thc._scheme.decoding.settings import RankCodes, ResolvedRankCodes
from byteps_thc._scheme.shares import block_words, even_spans

CPU = torch.device("cpu")
RANKS = 4
SIZES = (5000, 30, 9000)
SETTINGS = RankCodes(partition_bytes=1 << 14).resolve(RANKS)


def plans_of(sizes: tuple[int, ...], settings: ResolvedRankCodes, policy: CompressionPolicy) -> list[PiecePlan]:
    ends = [*itertools.accumulate(sizes)]
    parts = tuple(
        ParameterSlice(f"p{place}", end - size, end) for place, (size, end) in enumerate(zip(sizes, ends, strict=True))
    )
    buffer = GradientBuffer("b", torch.zeros(ends[-1]), parts)
    return [*piece_plans(Layout.of_buffer(buffer, policy, None), settings)]


def plans_of_buffer() -> list[PiecePlan]:
    return plans_of(SIZES, SETTINGS, CompressionPolicy())


def places(blocks: _core.BlockTable) -> list[tuple[int, int]]:
    return [(word >> 7, (word >> 7) + (word & 127)) for word in blocks.words.tolist()]


def test_blocks_of_all_shards_are_those_of_the_tensors_in_order() -> None:
    plans = plans_of_buffer()
    assert len(plans) == 4
    assert [plan.span.start for plan in plans[1:]] == [plan.span.stop for plan in plans[:-1]]
    assert (plans[0].span.start, plans[-1].span.stop) == (0, sum(SIZES))
    shards = [(plan, shard) for plan in plans for shard in plan.shards]
    found = [
        (start + plan.span.start, stop + plan.span.start) for plan, one in shards for start, stop in places(one.blocks)
    ]
    tensors = (range(0, 5000), range(5030, 14030))
    assert found == [(at, min(at + 64, tensor.stop)) for tensor in tensors for at in tensor[::64]]
    counts = [len(shard.blocks) for _, shard in shards]
    assert [shard.blocks.first for _, shard in shards] == [0, *itertools.accumulate(counts[:-1])]
    assert max(counts) - min(counts) <= 2


def test_each_exact_value_is_in_one_shard() -> None:
    exact = [plan for plan in plans_of_buffer() if plan.exact]
    assert [stop - start for plan in exact for start, stop in plan.exact] == [SIZES[1]]
    for plan in exact:
        assert [value for shard in plan.shards for value in range(SIZES[1])[shard.exact]] == [*range(SIZES[1])]


def test_all_pieces_have_the_key_of_the_gradient() -> None:
    keys = {shard.tensor for plan in plans_of_buffer() for shard in plan.shards}
    assert keys == {zlib.crc32(f"b[0:{sum(SIZES)}]".encode())}


@pytest.mark.parametrize("name", ["random_key", "block_words", "cut_blocks", "share_out"])
def test_other_keys_and_shares_are_of_another_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks compare the identity before they write an average."""
    others: dict[str, Callable[..., Any]] = {
        "random_key": lambda name: plan.random_key(name) ^ 1,
        "block_words": lambda tensors, rows: plan.block_words(tensors, rows) - 1,
        "cut_blocks": lambda tables, columns, pieces: plan.cut_blocks(tables, columns, pieces + 1),
        "share_out": lambda key, blocks, exact, ranks: plan.share_out(key, blocks, exact, ranks)[::-1],
    }
    own, other = plans_of_buffer(), others[name]
    plan = types.SimpleNamespace(**vars(plans))
    monkeypatch.setattr(plans, name, other)
    assert {each.identity[3] for each in plans_of_buffer()}.isdisjoint(each.identity[3] for each in own)


@pytest.mark.parametrize(("width", "skipped"), [(100, 20), (32, 0), (65, 64), (128, 1), (64, 0), (31, 0), (300, 299)])
def test_blocks_end_with_rows_that_are_not_narrow(width: int, skipped: int) -> None:
    """The first row may begin in another shard."""
    words = block_words([(0, 10), (10, 2010), (2010, 2010)], [RowSpan(10, 2010, width, skipped)])
    expected = [(0, 10)]
    for at in range(10 - skipped if width >= 32 else 10, 2010, width if width >= 32 else 2000):
        start, stop = max(at, 10), min(at + (width if width >= 32 else 2000), 2010)
        expected += [(block, min(block + 64, stop)) for block in range(start, stop, 64)]
    assert places(_core.BlockTable(words)) == expected


def test_rows_of_a_reduce_scatter_have_numbers_and_padding_of_their_own() -> None:
    columns, ends = 1045, (1042, 800)
    compressed = tuple(
        ParameterSlice(f"p{number}", row * columns + start, row * columns + min(stop, ends[row]))
        for row in range(2)
        for number, (start, stop) in enumerate(((0, 512), (542, 1042)))
    )
    matrix = ShardMatrix("m", 2, columns, compressed, exact=((512, 542),), parameters=("p0", "p1", "small"))
    [plan] = piece_plans(Layout.of_matrix("rows", matrix, torch.float32), RankCodes().resolve(2, sharded=True))
    assert [shard.tensor for shard in plan.shards] == [zlib.crc32(b"m[0:1045]")] * 2
    assert [shard.blocks.first for shard in plan.shards] == [0, 16]
    assert plan.exact == [(512, 542)]
    for shard, end in zip(plan.shards, ends, strict=True):
        covered = [at for start, stop in places(shard.blocks) for at in range(start, stop)]
        assert covered == [*range(512), *range(542, end)]


def test_equal_rows_of_a_reduce_scatter_share_words_in_memory() -> None:
    """Each rank has the tables of all rows."""
    columns, ranks = 4096, 4
    parts = tuple(ParameterSlice("p", row * columns, (row + 1) * columns - 100 * (row == 3)) for row in range(ranks))
    matrix = ShardMatrix("m", ranks, columns, parts, parameters=("p",))
    settings = RankCodes(partition_bytes=1 << 15).resolve(ranks, sharded=True)
    *whole, last = piece_plans(Layout.of_matrix("rows", matrix, torch.float32), settings)
    assert whole
    for plan, expected in (*((plan, [True, True, True]) for plan in whole), (last, [True, True, False])):
        first, *others = (shard.blocks for shard in plan.shards)
        assert [table.shares_words(first) for table in others] == expected
        assert len({shard.blocks.first for shard in plan.shards}) == ranks


@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("bits", [4, 8])
def test_no_shape_sends_more_bytes_than_fp32(bits: int, ranks: int) -> None:
    """A message has at least 16 bytes of header, and codes and scales of a block: 80 bytes for 256 of fp32."""
    settings = RankCodes(bits=bits).resolve(ranks)
    for sizes in ((1024,), (1025,), (2048,), (1 << 14, 1000, 3000), (5, 1 << 20, 70_001)):
        size = sum(sizes)
        plans = plans_of(sizes, settings, CompressionPolicy())
        assert ranks * sum(plan.up.size_bytes + plan.down.size_bytes for plan in plans) <= 2 * 4 * max(size, 32 * ranks)


def test_messages_have_bits_and_scales_and_little_else() -> None:
    [plan] = plans_of((1 << 20,), RankCodes().resolve(RANKS), CompressionPolicy())
    bits = 8 * RANKS * (plan.up.size_bytes + plan.down.size_bytes) / (1 << 20)
    assert bits == pytest.approx(2 * (4 + 17 * 8 / 1024), abs=0.002)
    assert np.all(np.array([plan.up.codes_at, plan.up.size_bytes]) % 16 == 0)


@given(size=st.integers(0, 100_000), largest=st.integers(64, 20_000), multiple=st.sampled_from([64, 1024, 8192]))
def test_spans_are_few_and_even(size: int, largest: int, multiple: int) -> None:
    spans = even_spans(size, largest, multiple)
    edges = [0, *(span.stop for span in spans)]
    assert [span.start for span in spans] == edges[:-1]
    assert edges[-1] == size
    lengths = [span.stop - span.start for span in spans]
    assert all(0 < length <= largest for length in lengths)
    if lengths[1:]:
        assert max(lengths[:-1]) - min(lengths[:-1]) <= multiple
    if largest % multiple == 0:
        assert len(spans) == -(-size // largest), "no more than the limit needs"
        assert all(length % multiple == 0 for length in lengths[:-1])
        assert not lengths or max(lengths) - lengths[-1] < 2 * multiple


@given(size=st.integers(0, 20_000_000), servers=st.integers(1, 64), block=st.sampled_from([64, 8192, 1 << 20]))
def test_each_server_has_as_many_spans(size: int, servers: int, block: int) -> None:
    alone, spans = even_spans(size, 1 << 20, block), even_spans(size, 1 << 20, block, servers)
    assert len(alone) <= len(spans) < len(alone) + servers
    lengths = [span.stop - span.start for span in spans]
    assert sum(lengths) == size
    assert all(0 < length <= 1 << 20 for length in lengths)
    if size >= 1 << 16 and block <= 8192:
        assert max(lengths) - min(lengths) < 2 * block
        assert len(spans) % servers == 0 or size // (len(spans) + 1) < 1 << 16, "shorter ones would cost more"


def test_a_model_of_a_million_is_shared_by_four_servers() -> None:
    assert len(even_spans(1_100_000, 1 << 20, 8192, servers=4)) == 4


def test_a_bucket_of_ddp_has_no_short_last_piece() -> None:
    """Six layers of 1024 x 1024 with biases: with pieces of 8 MiB there would be a fourth one of 24 KiB."""
    lengths = [span.stop - span.start for span in even_spans(6 * (1024 * 1024 + 1024), 9 << 18, 8192)]
    assert len(lengths) == 3
    assert max(lengths) - min(lengths) < 2 * 8192
