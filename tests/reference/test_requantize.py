"""Requantized sums have the oracle's bits, from the owner's codes and scales to the average."""

from collections.abc import Iterator

import _core_test as core
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Key, KnownSum

from byteps_thc import LookupTable
from byteps_thc.block_plan import END_MULTIPLE, ends_array
from byteps_thc.errors import ConfigurationError, InputError
from byteps_thc.tables.selection import DOWN_BITS, down_table

SETTINGS = settings(max_examples=40, deadline=None)
KEYS = st.builds(Key, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
#: workers and granularity, of sums of 8 and of 16 bits; the largest there are
SUMS = st.sampled_from([(1, 1), (4, 51), (5, 51), (1, 255), (8, 189), (3, 21845), (65535, 1), (1, 65535)])
KINDS = st.sampled_from(["normal", "uniform", "equal", "middle", "lowest", "highest", "one"])
TABLES = st.sampled_from([down_table(bits) for bits in DOWN_BITS] + [LookupTable.solve(4, 30, 1 / 32)])


@pytest.fixture(autouse=True, params=core.instruction_sets(), scope="module")
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    core.use_instruction_set(request.param)
    yield request.param
    core.use_instruction_set(None)


def sums_of(kind: str, count: int, workers: int, granularity: int, seed: int) -> np.ndarray:
    """count: a multiple of 64. equal: the same everywhere; middle: all 0 where n g is even; one: one is not."""
    most, random = workers * granularity, np.random.default_rng(seed)
    sums = np.full(count, most // 2)
    if kind == "normal":
        sums = np.clip(np.rint(most / 2 + random.standard_normal(count) * most / 8), 0, most)
    elif kind == "uniform":
        sums = random.integers(0, most + 1, count)
    elif kind == "equal":
        sums[:] = random.integers(0, most + 1)
    elif kind in ("lowest", "highest"):
        sums[:] = 0 if kind == "lowest" else most
    elif kind == "one":
        sums[count // 2 : count // 2 + 1] = most
    return sums.astype(np.uint8 if most < 1 << 8 else np.uint16)


def known_sum(subtract: bool, workers: int) -> KnownSum | None:
    """Some known error, with pieces that all differ."""
    error = np.random.default_rng(1).standard_normal((2, 16)).astype(np.float32) * np.array([[2], [1e-4]], np.float32)
    return KnownSum(error, workers, 2) if subtract else None


def arguments(known: KnownSum | None) -> dict:
    """known and domain of the kernels."""
    return {} if known is None else {"known": known.error, "domain": known.domain}


def misaligned(array: np.ndarray, offset: int) -> np.ndarray:
    raw = np.full(array.nbytes + 64, 0xA5, np.uint8)[offset : offset + array.nbytes].view(array.dtype)
    raw[:] = array
    return raw


def requantized(
    sums: np.ndarray, first: int, of: tuple[int, int], table: LookupTable, key: Key, known: KnownSum | None
) -> tuple:
    """Packed codes and scales of the kernel."""
    codes = np.full(core.code_bytes(sums.size, table.bits), 0xA5, np.uint8)
    scales = np.full(-(-sums.size // 256), 0xA5A5, np.uint16)
    core.requantize(
        sums, codes, scales, first=first, workers=of[0], granularity=of[1], values=table.array, bits=table.bits,
        seed=key.seed, tensor=key.tensor, round=key.round, **arguments(known),
    )  # fmt: skip
    return codes, scales


@given(
    of=SUMS, kind=KINDS, groups=st.integers(0, 60), rest=st.integers(0, 3), first=st.integers(0, 40),
    table=TABLES, key=KEYS, offset=st.integers(0, 8), seed=st.integers(0, 99), subtract=st.booleans(),
)  # fmt: skip
@SETTINGS
def test_requantize(of, kind, groups, rest, first, table, key, offset, seed, subtract):
    known = known_sum(subtract, of[0])
    sums = sums_of(kind, 256 * groups + 64 * rest, *of, seed)
    wide = sums.astype(np.uint16)  # 8-bit sums in 16 bits give the same
    expected, limits = reference.requantize(sums, 256 * first, *of, table.values, key, known)
    for width in (sums, wide):
        codes, scales = requantized(misaligned(width, offset), 256 * first, of, table, key, known)
        assert codes.tobytes() == reference.pack(expected, table.bits).tobytes()
        np.testing.assert_array_equal((scales.astype(np.uint32) << 16).view(np.float32), limits)


@given(
    of=SUMS, kind=KINDS, size=st.integers(1, 20000), block=st.sampled_from([64, 128, 256, 1024, 8192, 16384]),
    table=TABLES, key=KEYS, offset=st.integers(0, 8), subtract=st.booleans(), data=st.data(),
)  # fmt: skip
@SETTINGS
def test_keep_loss(of, kind, size, block, table, key, offset, subtract, data):
    """Of any shard of a partition, into a residual at any address."""
    known = known_sum(subtract, of[0])
    multiples = st.lists(st.integers(1, max(1, (size - 1) // END_MULTIPLE)), unique=True, max_size=4)
    ends = tuple(sorted(END_MULTIPLE * end for end in data.draw(multiples))) if size > END_MULTIPLE else ()
    sizes = reference.block_sizes(size, block, ends)
    norms = st.sampled_from([0.0, 1e-30, 0.5, 1.0, 3.0, 1e30, 1e38, np.inf, np.nan])
    maxima = np.array([data.draw(norms) for _ in sizes], np.float32)
    groups = -(-sum(sizes) // 256)
    first = 256 * data.draw(st.integers(0, groups - 1))
    count = min(256 * data.draw(st.integers(1, groups)), sum(sizes) - first)
    shard = sums_of(kind, count, *of, 0), first, *of
    requantized = reference.requantize(*shard, table.values, key, known)
    before = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    of_partition = maxima, size, block, 2.5, key, known, ends
    lost = reference.requantizing_loss(*shard, requantized, table.values, *of_partition)
    expected = before + lost
    if data.draw(st.booleans(), label="bfloat16"):
        before = reference.bfloat16(before)
        expected = reference.bfloat16(reference.from_bfloat16(before) + lost)
    residual = misaligned(before, 4 * offset)
    core.keep_loss(
        misaligned(shard[0], offset), reference.pack(requantized[0], table.bits),
        (requantized[1].view(np.uint32) >> 16).astype(np.uint16), maxima, residual, first=first, workers=of[0],
        granularity=of[1], values=table.array, bits=table.bits, rotation_block=block, threshold=2.5, seed=key.seed,
        tensor=key.tensor, round=key.round, ends=ends_array(ends), **arguments(known),
    )  # fmt: skip
    np.testing.assert_array_equal(residual, expected)  # 0 and -0 are the same


@given(largest=st.integers(0, 65535))
@SETTINGS
def test_scales_are_not_below_the_largest(largest):
    scale = reference.scale_of(largest)
    assert largest <= scale <= largest * (1 + 2**-7)
    assert scale.view(np.uint32) & 0xFFFF == 0


@given(
    of=SUMS, kind=KINDS, size=st.integers(1, 20000), block=st.sampled_from([64, 128, 256, 1024, 8192]),
    table=TABLES, key=KEYS, data=st.data(),
)  # fmt: skip
@SETTINGS
def test_decode(of, kind, size, block, table, key, data):
    sizes = reference.block_sizes(size, block)
    norms = st.sampled_from([0.0, 1e-42, 1e-30, 0.5, 1.0, 3.0, 1e30, 1e38, np.inf, np.nan])
    maxima = np.array([data.draw(norms) for _ in sizes], np.float32)
    codes, limits = reference.requantize(sums_of(kind, sum(sizes), *of, 0), 0, *of, table.values, key)
    values = np.array(table.values, np.uint8)[codes]
    scales = limits / np.float32(of[0] * of[1])
    expected = reference.decode_requantized(values, scales, maxima, size, block, table.granularity, 2.5, key)
    out = np.full(size, np.nan, np.float32)
    core.decode(
        values, None, maxima, out, coordinates=size, codes_per_chunk=64, rotation_block=block,
        granularity=table.granularity, threshold=2.5, seed=key.seed, tensor=key.tensor, round=key.round, scales=scales,
    )  # fmt: skip
    np.testing.assert_array_equal(out, expected)  # NaN too
    finite = np.isfinite(expected)
    assert out[finite].tobytes() == expected[finite].tobytes()


def test_what_does_not_fit_is_refused():
    table, sums = down_table(6), np.zeros(256, np.uint8)
    codes, scales = np.zeros(192, np.uint8), np.zeros(1, np.uint16)
    good = {
        "first": 0, "workers": 4, "granularity": 51, "values": table.array, "bits": 6, "seed": 0, "tensor": 0,
        "round": 0,
    }  # fmt: skip
    core.requantize(sums, codes, scales, **good)
    with pytest.raises(ConfigurationError, match="first must be a multiple of 256, got 64"):
        core.requantize(sums, codes, scales, **good | {"first": 64})
    with pytest.raises(ConfigurationError, match=r"granularity \* workers must be in 1 .. 65535, got 51 \* 2000"):
        core.requantize(sums, codes, scales, **good | {"workers": 2000})
    with pytest.raises(InputError, match="sums: expected uint16, got uint8"):
        core.requantize(sums, codes, scales, **good | {"workers": 8})
    with pytest.raises(InputError, match="sums: expected a multiple of 64 sums, got 100"):
        core.requantize(sums[:100], codes, scales, **good)
    with pytest.raises(InputError, match="codes"):
        core.requantize(sums, codes[1:], scales, **good)
    with pytest.raises(InputError, match="scales"):
        core.requantize(sums, codes, scales.view(np.int16), **good)
    norms, residual = np.ones(1, np.float32), np.zeros(256, np.float32)
    kept = good | {"rotation_block": 256, "threshold": 2.0}
    core.keep_loss(sums, codes, scales, norms, residual, **kept)
    with pytest.raises(ConfigurationError, match="first must be a multiple of 256, got 64"):
        core.keep_loss(sums, codes, scales, norms, residual, **kept | {"first": 64})
    with pytest.raises(InputError, match=r"sums: expected the partition's 256 at most, got 256 \+ 256"):
        core.keep_loss(sums, codes, scales, norms, residual, **kept | {"first": 256})
    with pytest.raises(ConfigurationError, match="threshold must be positive and finite"):
        core.keep_loss(sums, codes, scales, norms, residual, **kept | {"threshold": 0.0})
    with pytest.raises(InputError, match="values: expected 8-bit table values, got 300"):
        core.keep_loss(sums, codes, scales, norms, residual, **kept | {"values": LookupTable.solve(6, 300, 0.01).array})
    with pytest.raises(InputError, match="max_norms"):
        core.keep_loss(sums, codes, scales, np.ones(2, np.float32), residual, **kept)
    with pytest.raises(InputError, match="residual"):
        core.keep_loss(sums, codes, scales, norms, residual.astype(np.float64), **kept)
    shape = {"coordinates": 256, "codes_per_chunk": 256, "rotation_block": 256, "granularity": 255, "threshold": 2.0}
    key = {"seed": 0, "tensor": 0, "round": 0}
    norms, out, ones = np.ones(1, np.float32), np.zeros(256, np.float32), np.ones(1, np.uint8)
    ratios = np.ones(1, np.float32)
    for contributions, given_scales in ((None, None), (ones, ratios)):
        with pytest.raises(InputError, match="contributions, scales: expected one of them"):
            core.decode(sums, contributions, norms, out, scales=given_scales, **shape, **key)
    with pytest.raises(InputError, match="scales"):
        core.decode(sums, None, norms, out, scales=np.ones(2, np.float32), **shape, **key)
