"""Among ranks that decode: the kernels have the oracle's bits, and averages the error and the bias that they should."""

from collections.abc import Iterator
from typing import Any

import _core_test as core
import nearest_reference as oracle
import nearest_rounds as rounds
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Key, as_dtype

from byteps_thc._native import _core
from byteps_thc._scheme.errors import ConfigurationError, InputError
from byteps_thc._scheme.tables.points import Points, lloyd_max, staggered

SETTINGS = settings(max_examples=25, deadline=None)
KEYS = st.builds(Key, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
BITS = st.integers(1, 8)
#: what a block is made of
KINDS = ["normal", "normal", "lognormal", "one", "zero", "tiny", "nan", "infinite", "huge", "large", "small"]
KEY = Key(2**63 + 5, 3, 2**31)


@pytest.fixture(params=core.instruction_sets(), scope="module")
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    core.use_instruction_set(request.param)
    yield request.param
    core.use_instruction_set(None)


def block_of(kind: str, size: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal(size)
    changed = {
        "lognormal": x * np.exp(2 * rng.standard_normal(size)),
        "one": np.where(np.arange(size) == size // 2, 3.0, 0.0),
        "zero": np.zeros(size),
        "tiny": x * 1e-35,
        "large": x * 1e20,
        "small": x * 1e-25,
        "huge": x * 1e36,
    }
    x = changed.get(kind, x).astype(np.float32)
    if kind in ("nan", "infinite"):
        x[size // 3] = np.nan if kind == "nan" else -np.inf
    return x


def narrowed(x: np.ndarray, dtype: str) -> np.ndarray:
    return reference.bfloat16(x) if dtype == "bfloat16" else x if dtype == "float32" else reference.float16(x)


def same(got: np.ndarray, wanted: np.ndarray) -> None:
    """Bits, but for those of NaN; -0 and 0 differ."""
    np.testing.assert_array_equal(got, wanted)
    if got.dtype != np.uint16:
        here = ~np.isnan(wanted)
        assert got[here].tobytes() == wanted[here].tobytes()


def misaligned(array: np.ndarray, offset: int) -> np.ndarray:
    raw = np.full(array.nbytes + 64, 0xA5, np.uint8)[offset : offset + array.nbytes].view(array.dtype)
    raw[:] = array
    return raw


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int, tuple[int, ...]]:
    """Coordinates, rotation block, ends: none, any, or rows."""
    size = draw(st.integers(0, 20000))
    block = draw(st.sampled_from([64, 128, 1024, 8192, 16384]))
    if size < 2 or draw(st.booleans()):
        return size, block, ()
    if draw(st.booleans()):
        width = draw(st.integers(1, min(size, 100)) | st.integers(1, size))
        size = min(size, 100 * width)
        return size, block, tuple(range(width, size, width))
    return size, block, tuple(sorted(draw(st.sets(st.integers(1, size - 1), max_size=5))))


def blocks_of(cut: tuple[int, int, tuple[int, ...]]) -> tuple[_core.RotationBlocks, list[oracle.Block]]:
    size, block, ends = cut
    return _core.RotationBlocks(size, block, np.array(ends, np.uint64)), oracle.cut(size, block, ends)


@given(cut=cuts())
@SETTINGS
def test_blocks(cut):
    """No block has coordinates of two segments."""
    blocks, expected = blocks_of(cut)
    rows = [
        (block.coordinates.start, block.codes.start, block.codes.stop - block.codes.start,
         block.coordinates.stop - block.coordinates.start)
        for block in expected
    ]  # fmt: skip
    assert blocks.array().tolist() == [list(row) for row in rows]
    assert len(blocks) == len(rows)
    assert blocks.padded == (expected[-1].codes.stop if expected else 0)
    assert {*cut[2]} <= {row[0] for row in rows}
    begin, end = len(rows) // 3, len(rows) - len(rows) // 4
    assert blocks.part(begin, end).array().tolist() == [list(row) for row in rows[begin:end]]


@pytest.mark.usefixtures("instruction_set")
@given(
    cut=cuts(), bits=BITS, down_bits=BITS, ranks=st.integers(1, 5), key=KEYS, seed=st.integers(0, 1000),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]), offset=st.integers(0, 7), data=st.data(),
)  # fmt: skip
@SETTINGS
def test_kernels_have_the_oracles_bits(cut, bits, down_bits, ranks, key, seed, dtype, offset, data):
    blocks, expected_blocks = blocks_of(cut)
    points = [staggered(bits, rank, ranks) for rank in range(ranks)]
    down = lloyd_max(down_bits)
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    sent, expected_sent = [], []
    for rank, own in enumerate(points):
        rng = np.random.default_rng([seed, rank])
        gradient = np.zeros(cut[0], np.float32)
        for number, block in enumerate(expected_blocks):
            size = block.coordinates.stop - block.coordinates.start
            kind = kinds[(number + (rank if seed % 2 else 0)) % len(kinds)]
            gradient[block.coordinates] = block_of(kind, size, rng)
        kept, wide = as_dtype(gradient, dtype)
        one = rounds.encode(misaligned(kept, offset), blocks, own, key, kernels=core)
        expected = oracle.encode(wide, expected_blocks, own, key, down=False)
        assert one.codes.tobytes() == reference.pack(expected.codes, bits).tobytes()
        same(one.scales, expected.scales)
        sent.append(one)
        expected_sent.append(expected)
    average = oracle.decode(expected_sent, points, expected_blocks, key, down=False)
    numpy_type: Any = np.uint16 if dtype == "bfloat16" else dtype
    same(rounds.decode(sent, points, blocks, key, kernels=core, dtype=numpy_type), narrowed(average, dtype))
    again = rounds.recode(sent, points, blocks, key, down, kernels=core)
    expected_again = oracle.recode(expected_sent, points, expected_blocks, key, down)
    assert again.codes.tobytes() == reference.pack(expected_again.codes, down_bits).tobytes()
    same(again.scales, expected_again.scales)
    same(
        rounds.decode([again], [down], blocks, key, kernels=core, down=True),
        oracle.decode([expected_again], [down], expected_blocks, key, down=True),
    )


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(
    ("ranks", "size", "block"), [(16, 9000, 8192), (64, 9000, 8192), (2, (1 << 20) + 9000, 1 << 20)]
)
@pytest.mark.parametrize("bits", [1, 3, 4, 5, 8])
def test_many_ranks_and_large_blocks(bits, ranks, size, block):
    ends = (100, 8300)
    blocks, expected_blocks = blocks_of((size, block, ends))
    gradients = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(ranks)]
    points = [staggered(bits, rank, ranks) for rank in range(ranks)]
    sent = [rounds.encode(x, blocks, own, KEY, kernels=core) for x, own in zip(gradients, points, strict=True)]
    down = lloyd_max(bits)
    got = rounds.decode(
        [rounds.recode(sent, points, blocks, KEY, down, kernels=core)], [down], blocks, KEY, kernels=core, down=True
    )
    same(got, oracle.average(gradients, expected_blocks, points, down, KEY))


@pytest.mark.parametrize("bits", range(1, 9))
def test_threads_and_shards_have_the_same_bits(bits):
    size, ends = 1_000_003, np.array([100, 5000, 500_000], np.uint64)
    blocks = _core.RotationBlocks(size, 8192, ends)
    points = [staggered(bits, rank, 3) for rank in range(3)]
    gradients = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(3)]
    down = lloyd_max(1 + bits % 8)
    alone = [rounds.encode(x, blocks, own, KEY) for x, own in zip(gradients, points, strict=True)]
    recoded = rounds.recode(alone, points, blocks, KEY, down)
    average = rounds.decode([recoded], [down], blocks, KEY, down=True)
    for threads in (2, 3, 8):
        pool = _core.ThreadPool(threads)
        for x, own, wanted in zip(gradients, points, alone, strict=True):
            got = rounds.encode(x, blocks, own, KEY, pool=pool)
            assert (got.codes.tobytes(), got.scales.tobytes()) == (wanted.codes.tobytes(), wanted.scales.tobytes())
        got = rounds.recode(alone, points, blocks, KEY, down, pool=pool)
        assert (got.codes.tobytes(), got.scales.tobytes()) == (recoded.codes.tobytes(), recoded.scales.tobytes())
        assert rounds.decode([recoded], [down], blocks, KEY, down=True, pool=pool).tobytes() == average.tobytes()
    table = blocks.array()
    begin, end = len(blocks) // 2, len(blocks) - 3
    part = blocks.part(begin, end)
    first, last = table[begin], table[end]
    of_codes = slice(_core.code_bytes(int(first[1]), bits), _core.code_bytes(int(last[1]), bits))
    shard = [rounds.Sent(sent.codes[of_codes], sent.scales[begin:end]) for sent in alone]
    got = rounds.recode(shard, points, part, KEY, down)
    of_codes = slice(_core.code_bytes(int(first[1]), down.bits), _core.code_bytes(int(last[1]), down.bits))
    assert got.codes.tobytes() == recoded.codes[of_codes].tobytes()
    assert got.scales.tobytes() == recoded.scales[begin:end].tobytes()
    got_average = rounds.decode([got], [down], part, KEY, down=True)
    assert got_average.tobytes() == average[first[0] : last[0]].tobytes()


def test_rows_of_no_rank_are_zero_and_others_err_by_their_own_norm():
    """No block has coordinates of two rows, whatever their width."""
    rows, width = 200, 100
    scale = 10.0 ** np.random.default_rng(5).integers(-6, 3, (rows, 1))
    gradients = [np.random.default_rng(rank).standard_normal((rows, width)) * scale for rank in range(4)]
    for gradient in gradients:
        gradient[::3] = 0
    flat = [gradient.astype(np.float32).reshape(-1) for gradient in gradients]
    blocks = _core.RotationBlocks(rows * width, 8192, np.arange(width, rows * width, width, dtype=np.uint64))
    points, down = [staggered(5, rank, 4) for rank in range(4)], lloyd_max(5)
    sent = [rounds.encode(x, blocks, own, KEY) for x, own in zip(flat, points, strict=True)]
    average = rounds.decode([rounds.recode(sent, points, blocks, KEY, down)], [down], blocks, KEY, down=True)
    exact = np.mean(flat, axis=0, dtype=np.float64).reshape(rows, width)
    got = average.reshape(rows, width)
    assert not got[::3].any()
    errors = np.square(got - exact).sum(1)[1::3] / np.square(exact).sum(1)[1::3]
    assert errors.max() < 0.02
    assert errors.mean() < 0.008


def gradients_of(kind: str, ranks: int, size: int, seed: int) -> list[np.ndarray]:
    """normal, lognormal (scales of coordinates that ranks share) and normal with cosines of .9; copies."""
    rng = np.random.default_rng([seed, ranks])
    noise = rng.standard_normal((ranks, size))
    if kind == "lognormal":
        noise *= np.exp(rng.standard_normal(size))
    elif kind == "cosine .9":
        noise = np.sqrt(0.9) * rng.standard_normal(size) + np.sqrt(0.1) * noise
    elif kind == "copies":
        noise[:] = noise[0]
    return list(noise.astype(np.float32))


def error_against_eden(kind: str, ranks: int, bits: int, down_bits: int | None, size: int, repeats: int) -> float:
    """Mean squared errors of averages, divided by EDEN's."""
    own = edens = 0.0
    for seed in range(repeats):
        gradients = gradients_of(kind, ranks, size, seed)
        exact, key = np.mean(gradients, axis=0, dtype=np.float64), Key(seed, 1, 2)
        own += np.square(rounds.average(gradients, bits, down_bits, key) - exact).sum()
        edens += np.square(rounds.eden_average(gradients, bits, down_bits, key) - exact).sum()
    return own / edens


#: The target is 1.03. Where 8 ranks or more agree (cosine .9), 3, 4 and 8 bits miss it, staggered or not.
MOST = {3: 1.07, 4: 1.04, 5: 1.03, 6: 1.03, 7: 1.03, 8: 1.04}
NOISE = 0.006


@pytest.mark.parametrize("kind", ["normal", "lognormal", "cosine .9"])
@pytest.mark.parametrize("bits", [3, 4, 5])
def test_errors_are_edens(kind, bits):
    assert error_against_eden(kind, 4, bits, bits, 1 << 17, 2) < MOST[bits] + NOISE


@pytest.mark.parametrize("bits", [4, 5])
def test_errors_are_below_edens_where_ranks_have_copies(bits):
    assert error_against_eden("copies", 4, bits, bits, 1 << 16, 2) < 0.92
    assert error_against_eden("copies", 4, bits, None, 1 << 16, 2) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "lognormal", "cosine .9"])
@pytest.mark.parametrize("bits", range(3, 9))
@pytest.mark.parametrize("ranks", [2, 4, 8, 32, 64])
def test_errors_are_edens_for_all_widths_and_ranks(kind, bits, ranks):
    assert error_against_eden(kind, ranks, bits, bits, 1 << 18, 4) < MOST[bits] + NOISE


def bias(scales: tuple[float, ...], bits: int, repeats: int, down: bool = True) -> float:
    """|mean of averages - exact|^2 over what noise of mean zero leaves of it: 1 where there is no bias.

    down: whether owners round with signs of their own.
    """
    size = 8192
    blocks = _core.RotationBlocks(size, 8192)
    rng = np.random.default_rng(3)
    gradients = [(rng.standard_normal(size) * scale).astype(np.float32) for scale in scales]
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    points, to_all = [staggered(bits, rank, len(scales)) for rank in range(len(scales))], lloyd_max(bits)
    total, energy = np.zeros(size), 0.0
    for number in range(repeats):
        key = Key(9, 4, number)
        sent = [rounds.encode(x, blocks, own, key) for x, own in zip(gradients, points, strict=True)]
        if down:
            again = rounds.recode(sent, points, blocks, key, to_all)
        else:
            again = rounds.encode(rounds.decode(sent, points, blocks, key), blocks, to_all, key)
        average = rounds.decode([again], [to_all], blocks, key, down=down)
        total += average
        energy += np.square(average - exact).sum()
    return float(np.square(total / repeats - exact).sum() / (energy / repeats**2))


NORMS = pytest.mark.parametrize("norms", [(1, 1, 1, 1), (1, 10, 100, 1)])


@NORMS
@pytest.mark.parametrize("bits", [2, 4])
def test_averages_have_no_bias(norms, bits):
    assert bias(norms, bits, 300) == pytest.approx(1, abs=0.08)


def test_the_same_signs_on_the_way_down_would_have_a_bias():
    assert bias((1, 10, 100, 1), 2, 300, down=False) > 5


@pytest.mark.slow
@NORMS
@pytest.mark.parametrize("bits", [2, 3, 4, 5])
def test_averages_have_no_bias_over_ten_thousand_rounds(norms, bits):
    assert bias(norms, bits, 10_000) == pytest.approx(1, abs=0.08)


def test_what_does_not_fit_is_refused():
    blocks, points = _core.RotationBlocks(1000, 256), lloyd_max(4)
    gradient = np.zeros(1000, np.float32)
    sent = rounds.encode(gradient, blocks, points, KEY)
    good = {"blocks": blocks, "edges": points.edges, "points": points.points, **rounds.keywords(KEY)}
    with pytest.raises(InputError, match=r"gradient: expected C-contiguous floats\[1000\]"):
        core.encode_nearest(gradient[1:], *sent, **good)
    with pytest.raises(InputError, match="codes"):
        core.encode_nearest(gradient, sent.codes[1:], sent.scales, **good)
    with pytest.raises(InputError, match="scales"):
        core.encode_nearest(gradient, sent.codes, sent.scales[1:], **good)
    with pytest.raises(ConfigurationError, match=r"points must be 2, 4 \.\. 256, with an edge between neighbours"):
        core.encode_nearest(gradient, *sent, **good | {"edges": points.edges[1:]})
    with pytest.raises(ConfigurationError, match="points and edges must be finite and ascend"):
        core.encode_nearest(gradient, *sent, **good | {"edges": points.edges[::-1].copy()})
    rows = rounds.gathered([sent, sent], blocks, 4)
    two = {"blocks": blocks, "points": np.stack([points.points] * 2), **rounds.keywords(KEY)}
    core.decode_nearest(*rows, gradient, **two)
    with pytest.raises(InputError, match=r"points: expected float32\[ranks, 2\^bits\]"):
        core.decode_nearest(*rows, gradient, **two | {"points": points.points})
    with pytest.raises(InputError, match=r"points: expected 2, 4 \.\. 256 of each rank, got 5"):
        core.decode_nearest(*rows, gradient, **two | {"points": np.zeros((2, 5), np.float32)})
    with pytest.raises(InputError, match=r"codes: expected uint8\[2, \d+\] of contiguous rows"):
        core.decode_nearest(rows.codes[:1], rows.scales, gradient, **two)
    with pytest.raises(InputError, match=r"scales: expected float32\[2, \d+\] of contiguous rows"):
        core.decode_nearest(rows.codes, rows.scales[:, ::2], gradient, **two)
    with pytest.raises(InputError, match=r"blocks: expected a range within 0 \.\. \d+, got 3 \.\. 2"):
        blocks.part(3, 2)
    with pytest.raises(ConfigurationError, match="ends of blocks must ascend between 0 and 100, got 100 behind 0"):
        _core.RotationBlocks(100, 64, np.array([100], np.uint64))
    assert isinstance(points, Points)
