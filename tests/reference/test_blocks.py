"""Among ranks that decode: the kernels have the oracle's bits, and averages the error and the bias that they should."""

from collections.abc import Iterator
from typing import Any

import _core_test as core
import block_reference as oracle
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Key, as_dtype

from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._engine.fingerprint import sum_of_bits
from byteps_thc._native import _core
from thc_lab import block_rounds as rounds

SETTINGS = settings(max_examples=25, deadline=None)
KEYS = st.builds(Key, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
BITS = st.integers(1, 8)
#: Contents of a block.
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
        "tiny": x * 1e-40,
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
    """Bits, but for NaN's; -0 and 0 differ."""
    is_nan = [x & 0x7FFF > 0x7F80 if x.dtype == np.uint16 else np.isnan(x) for x in (got, wanted)]
    np.testing.assert_array_equal(*is_nan)
    here = ~is_nan[1]
    assert got[here].tobytes() == wanted[here].tobytes()


def same_message(got: rounds.Sent, wanted: oracle.Encoded, bits: int) -> None:
    assert got.codes.tobytes() == reference.pack(wanted.codes.reshape(-1), bits).tobytes()
    assert got.scales.tobytes() == wanted.scales.tobytes()


def misaligned(array: np.ndarray, offset: int) -> np.ndarray:
    raw = np.full(array.nbytes + 64, 0xA5, np.uint8)[offset : offset + array.nbytes].view(array.dtype)
    raw[:] = array
    return raw


@st.composite
def tables(draw: st.DrawFn) -> oracle.Blocks:
    """Blocks of tensors with gaps between them, whose ends another row may lack."""
    sizes = draw(st.lists(st.integers(0, 100) | st.integers(0, 3000), max_size=6))
    gaps = draw(st.lists(st.integers(0, 70), min_size=len(sizes), max_size=len(sizes)))
    starts = np.cumsum([0, *sizes[:-1]]) + np.cumsum(gaps) if sizes else []
    blocks = oracle.cut((int(start), int(start) + size) for start, size in zip(starts, sizes, strict=True))
    missing = draw(st.integers(0, 40))
    return blocks._replace(used=np.maximum(blocks.used - missing, 0), first=draw(st.integers(0, 2**32 - 1)))


@pytest.mark.usefixtures("instruction_set")
@given(
    expected_blocks=tables(), bits=BITS, down_bits=BITS, ranks=st.integers(1, 5), key=KEYS, seed=st.integers(0, 1000),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]), offset=st.integers(0, 7), data=st.data(),
)  # fmt: skip
@SETTINGS
def test_kernels_have_the_oracles_bits(expected_blocks, bits, down_bits, ranks, key, seed, dtype, offset, data):
    blocks = _core.BlockTable(expected_blocks.words, expected_blocks.first)
    size = int((expected_blocks.starts + expected_blocks.used).max(initial=0))
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    run = data.draw(st.integers(1, 20))  # blocks of a kind
    sent, expected_sent = [], []
    for rank in range(ranks):
        rng = np.random.default_rng([seed, rank])
        gradient = np.full(size, np.nan, np.float32)  # in gaps, which nothing reads
        for number, (start, used) in enumerate(zip(expected_blocks.starts, expected_blocks.used, strict=True)):
            if used:
                kind = kinds[(number // run + (rank if seed % 2 else 0)) % len(kinds)]
                gradient[start : start + used] = block_of(kind, int(used), rng)
        kept, wide = as_dtype(gradient, dtype)
        sent.append(rounds.encode(misaligned(kept, offset), blocks, bits, key, rank=rank, ranks=ranks, kernels=core))
        expected_sent.append(oracle.encode(wide, expected_blocks, bits, key, rank=rank, ranks=ranks))
        same_message(sent[-1], expected_sent[-1], bits)
    numpy_type: Any = np.uint16 if dtype == "bfloat16" else dtype
    expected = oracle.decode(expected_sent, expected_blocks, bits, key, np.full(size, 7, np.float32))
    out = misaligned(narrowed(np.full(size, 7, np.float32), dtype), offset)
    assert out.dtype == numpy_type
    same(rounds.decode(sent, blocks, bits, key, out, kernels=core), narrowed(expected, dtype))
    again = rounds.recode(sent, blocks, bits, key, down_bits, kernels=core)
    expected_again = oracle.recode(expected_sent, expected_blocks, bits, key, down_bits)
    same_message(again, expected_again, down_bits)
    average = np.full(size, 7, np.float32)
    same(
        rounds.decode([again], blocks, down_bits, key, average.copy(), kernels=core, down=True),
        oracle.decode([expected_again], expected_blocks, down_bits, key, average, down=True),
    )


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("ranks", [16, 64])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_many_ranks(bits, ranks):
    tensors, size = [(0, 100), (130, 8300)], 8300
    gradients = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(ranks)]
    got = rounds.average(gradients, bits, bits, KEY, rounds.blocks_of(*tensors), core)
    same(got, oracle.average(gradients, oracle.cut(tensors), bits, bits, KEY, np.zeros(size, np.float32)))


def test_rows_of_no_rank_are_zero_and_others_err_by_their_own_norm():
    """A block has the elements of one row. Scales of a tile reach down to 2^-14 of its largest."""
    rows, width = 200, 128
    scale = 10.0 ** np.random.default_rng(5).integers(-2, 2, (rows, 1))
    gradients = [np.random.default_rng(rank).standard_normal((rows, width)) * scale for rank in range(4)]
    for gradient in gradients:
        gradient[::3] = 0
    flat = [gradient.astype(np.float32).reshape(-1) for gradient in gradients]
    got = rounds.average(flat, 5, 5, KEY).reshape(rows, width)
    exact = np.mean(flat, axis=0, dtype=np.float64).reshape(rows, width)
    assert not got[::3].any()
    errors = np.square(got - exact).sum(1)[1::3] / np.square(exact).sum(1)[1::3]
    assert errors.max() < 0.02
    assert errors.mean() < 0.008


def gradients_of(kind: str, ranks: int, size: int) -> list[np.ndarray]:
    rng = np.random.default_rng([7, ranks])
    noise = rng.standard_normal((ranks, size))
    if kind == "lognormal":
        noise = np.exp(1.5 * noise) * np.sign(rng.standard_normal((ranks, size)))
    elif kind == "one of 64":
        noise[:, ::64] *= 100
    elif kind == "norms":
        noise *= np.array([1, 10, 100, 1])[:, np.newaxis]
    elif kind == "copies":
        noise[:] = noise[0]
    return list(noise.astype(np.float32))


#: Independent normal gradients of 4 ranks: normalised squared error of an average, by bits.
MOST_ERROR = {2: 0.32, 3: 0.083, 4: 0.022, 5: 0.0052, 6: 0.00126, 8: 0.000076}


@pytest.mark.parametrize("bits", MOST_ERROR)
def test_errors_are_small(bits):
    gradients = gradients_of("normal", 4, 1 << 17)
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    error = np.square(rounds.average(gradients, bits, bits, KEY) - exact).sum() / np.square(exact).sum()
    assert error < MOST_ERROR[bits]


@pytest.mark.parametrize("bits", [4, 5])
def test_errors_of_ranks_with_copies_cancel(bits):
    gradients = gradients_of("copies", 4, 1 << 16)
    one, four = (
        np.square(rounds.average(own, bits, None, KEY) - gradients[0]).sum() for own in (gradients[:1], gradients)
    )
    assert four < one / 12


@pytest.mark.parametrize("kind", ["normal", "lognormal", "one of 64", "norms", "copies"])
@pytest.mark.parametrize("bits", [2, 3, 4, 5])
def test_averages_have_no_bias(kind, bits):
    """|mean of averages - exact|^2 over the remainder of noise of mean zero, 1 where no bias is."""
    size, repeats = 8192, 300
    gradients = gradients_of(kind, 4, size)
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    total, energy = np.zeros(size), 0.0
    for number in range(repeats):
        average = rounds.average(gradients, bits, bits, Key(9, 4, number))
        total += average
        energy += np.square(average - exact).sum()
    assert float(np.square(total / repeats - exact).sum() / (energy / repeats**2)) < (5 if bits == 2 else 2)


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
def test_sgd_reaches_the_optimum_of_a_small_gradient_beside_a_large_one(bits):
    """f = sum of c (w - 1)^2 / 2 with a noise in each rank's gradient: c is 100 for one coordinate of 64."""
    size, ranks, rng = 640, 4, np.random.default_rng(1)
    curvature = np.where(np.arange(size) % 64 == 5, 1.0, 0.01).astype(np.float32)
    weights = np.zeros(size, np.float32)
    mean = np.zeros(size)
    for step in range(4000):
        noise = rng.standard_normal((ranks, size)).astype(np.float32) * curvature
        average = rounds.average(list(curvature * (weights - 1) + noise), bits, bits, Key(1, 2, step))
        weights -= np.float32(0.5) * average
        if step >= 2000:
            mean += weights / 2000
    assert abs(mean[curvature < 1].mean() - 1) < 0.01
    assert np.abs(mean - 1).max() < 0.3


@pytest.mark.usefixtures("instruction_set")
def test_sum_of_the_bits_of_an_average():
    """NaN counts as 0: processors give it other bits."""
    blocks, out = rounds.blocks_of(64 * 40), np.zeros(64 * 40, np.float32)
    gradient = np.random.default_rng(1).standard_normal(64 * 40).astype(np.float32)
    gradient[700] = np.inf
    rows = rounds.gathered([rounds.encode(gradient, blocks, 4, KEY, kernels=core)], blocks, 4)
    total = core.decode_blocks(*rows, out, blocks=blocks, bits=4, **rounds.keywords(KEY))
    assert np.isnan(out).sum() == 64
    assert total == sum_of_bits(out)


def test_what_does_not_fit_is_refused():
    blocks = rounds.blocks_of(1000)
    gradient, message = np.zeros(1000, np.float32), rounds.empty(blocks, 4)
    (codes,), (scales,) = message
    good: dict[str, Any] = {"blocks": blocks, "bits": 4, **rounds.keywords(KEY)}
    core.encode_blocks(gradient, codes, scales, **good)
    for wrong, name in (
        ((gradient[1:], codes, scales), "gradient"),
        ((gradient, codes[1:], scales), "codes"),
        ((gradient, codes, scales[1:]), "scales"),
    ):
        with pytest.raises(InputError, match=name):
            core.encode_blocks(*wrong, **good)
    for name, value in (("bits", 0), ("bits", 9), ("rank", 1)):
        with pytest.raises((ConfigurationError, InputError), match=name):
            core.encode_blocks(gradient, codes, scales, **good | {name: value})
    rows = rounds.empty(blocks, 4, 2)
    for sent in rows:
        sent[:] = 0
    core.decode_blocks(*rows, gradient, **good)
    for wrong, name in (
        ((rows.codes[:1], rows.scales, gradient), "codes|scales"),
        ((rows.codes, rows.scales[:, ::2], gradient), "scales"),
        ((*rows, gradient[1:]), "out"),
    ):
        with pytest.raises(InputError, match=name):
            core.decode_blocks(*wrong, **good)
    with pytest.raises(InputError, match="blocks"):
        blocks.part(3, 2)
    for words in ([64 << 7 | 64, 64], [65], [0 << 7 | 64, 63 << 7 | 1], [-1]):
        with pytest.raises(InputError, match="blocks"):
            _core.BlockTable(np.array(words, np.int64))
