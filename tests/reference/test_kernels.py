"""Every kernel, on every instruction set, gives the oracle's bits. _core_test has the package's kernels."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import _core_test as core
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Key, as_dtype

from byteps_thc import LookupTable
from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._scheme.adding.tables import CODE_BITS
from byteps_thc._scheme.block_plan import END_MULTIPLE, ends_array
from byteps_thc._scheme.rounding import Rounding

SIZES = st.one_of(st.integers(0, 300), st.integers(0, 20000), st.sampled_from([64, 1024, 8192, 16384, 8193]))
BLOCKS = st.sampled_from([64, 128, 256, 1024, 8192, 1 << 15])
KEYS = st.builds(Key, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
ROUNDINGS = st.builds(Rounding, st.integers(1, 64), st.integers(0, 65535))
SETTINGS = settings(max_examples=40, deadline=None)
TABLES = st.sampled_from(
    [LookupTable.paper(), LookupTable.solve(4, 51, 1 / 256), LookupTable.solve(3, 20, 1 / 64)]
    + [LookupTable.uniform(bits) for bits in CODE_BITS]
    + [LookupTable.solve(5, 51, 1 / 128)]
    + [LookupTable.solve(4, 300, 1 / 32), LookupTable.solve(2, 9, 1 / 16)]
    + [LookupTable.solve(4, 7, 1 / 32), LookupTable.solve(8, 100, 1 / 256), LookupTable.solve(3, 1, 1 / 8)]
)


@pytest.fixture(autouse=True, params=core.instruction_sets(), scope="module")
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    core.use_instruction_set(request.param)
    yield request.param
    core.use_instruction_set(None)


@dataclass(frozen=True)
class Case:
    """One gradient and where it lies in memory."""

    size: int
    block: int
    key: Key
    misalignment: int  # bytes the buffers start after an aligned address
    seed: int
    ends: tuple[int, ...] = ()  # of rotation blocks

    def keywords(self) -> dict[str, Any]:
        """Functions that know the blocks."""
        return {
            "seed": self.key.seed,
            "tensor": self.key.tensor,
            "round": self.key.round,
            "ends": ends_array(self.ends),
        }

    def empty(self, size: int, dtype: type) -> np.ndarray:
        """An array that starts `misalignment` bytes after an aligned address; full of rubbish."""
        itemsize = np.dtype(dtype).itemsize
        raw = np.full(size * itemsize + 128, 0xA5, np.uint8)
        start = -raw.ctypes.data % 64 + self.misalignment
        return raw[start : start + size * itemsize].view(dtype)

    def place(self, array: np.ndarray) -> np.ndarray:
        placed = self.empty(array.size, array.dtype.type)
        placed[:] = array
        return placed

    def normal(self, size: int, scale: float = 1.0, stream: int = 0) -> np.ndarray:
        rng = np.random.default_rng([self.seed, stream])
        return self.place((rng.standard_normal(size) * scale).astype(np.float32))

    def blocks(self) -> int:
        return len(reference.block_sizes(self.size, self.block, self.ends))

    def padded(self) -> int:
        return sum(reference.block_sizes(self.size, self.block, self.ends))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size = draw(SIZES)
    multiples = st.lists(st.integers(1, max(1, (size - 1) // END_MULTIPLE)), unique=True, max_size=5)
    ends = sorted(END_MULTIPLE * end for end in draw(multiples)) if size > END_MULTIPLE else []
    return Case(size, draw(BLOCKS), draw(KEYS), draw(st.integers(0, 63)), draw(st.integers(0, 1000)), tuple(ends))


CASES = cases()


@given(case=CASES)
@SETTINGS
def test_layout(case):
    sizes = reference.block_sizes(case.size, case.block, case.ends)
    assert core.block_sizes(case.size, case.block, ends_array(case.ends)).tolist() == sizes
    assert core.padded_size(case.size, case.block) == sum(sizes)
    assert {*case.ends} <= {*np.cumsum(sizes).tolist()}


@pytest.mark.parametrize("ends", [(64,), (0,), (256, 128), (128, 128), (384,), (512,)])
def test_wrong_ends_are_refused(ends):
    with pytest.raises(ConfigurationError, match="ends of blocks must be ascending multiples of 128 between 0 and 384"):
        core.block_sizes(384, 64, ends_array(ends))


@given(case=CASES, dtype=st.sampled_from(["float32", "float16", "bfloat16"]), feedback=st.booleans())
@SETTINGS
def test_rotate_and_norms(case, dtype, feedback):
    gradient, as_float = as_dtype(case.normal(case.size), dtype)
    residual = case.normal(case.size, 0.1, stream=1) if feedback else None
    expected, expected_norms = reference.rotate(as_float, residual, case.block, case.key, case.ends)
    rotated, norms = case.empty(case.padded(), np.float32), case.empty(case.blocks(), np.float32)
    core.rotate(case.place(gradient), residual, rotated, rotation_block=case.block, **case.keywords())
    assert rotated.tobytes() == expected.tobytes()
    core.block_norms(case.place(gradient), residual, norms, rotation_block=case.block, ends=ends_array(case.ends))
    assert norms.tobytes() == expected_norms.tobytes()


@given(case=CASES, table=TABLES, rounding=ROUNDINGS, keep_error=st.booleans(), data=st.data())
@SETTINGS
def test_quantize(case, table, rounding, keep_error, data):
    special = st.sampled_from([0.0, 1e-42, 1e-30, 0.5, 1.0, 3.0, 1e30, np.inf, np.nan])
    maxima = case.place(np.array([data.draw(special) for _ in range(case.blocks())], np.float32))
    scale = data.draw(st.sampled_from([1e-30, 1.0, 4.0]))
    rotated = case.normal(case.padded(), scale)
    expected = reference.quantize(
        rotated, maxima, case.size, case.block, table.values, table.threshold, case.key, rounding, case.ends
    )
    before = rotated.tobytes()
    packed = case.empty(core.code_bytes(case.padded(), table.bits), np.uint8)
    clamped = core.quantize(
        rotated, maxima, packed, coordinates=case.size, rotation_block=case.block, values=table.array,
        bits=table.bits, threshold=table.threshold, keep_error=keep_error, **rounding._asdict(), **case.keywords(),
    )  # fmt: skip
    assert packed.tobytes() == reference.pack(expected.codes, table.bits).tobytes()
    assert clamped == expected.clamped
    assert rotated.tobytes() == (expected.error.tobytes() if keep_error else before)


@given(bits=st.integers(1, 8), count=st.integers(0, 3000), seed=st.integers(0, 99))
@SETTINGS
def test_pack_and_unpack(bits, count, seed):
    codes = np.random.default_rng(seed).integers(0, 1 << bits, count, dtype=np.uint8)
    packed = np.full(core.code_bytes(count, bits), 0xA5, np.uint8)
    core.pack(codes, packed, bits=bits)
    assert packed.tobytes() == reference.pack(codes, bits).tobytes()
    unpacked = np.full(count, 0xA5, np.uint8)
    core.unpack(packed, unpacked, bits=bits)
    np.testing.assert_array_equal(unpacked, reference.unpack(packed, bits, count))
    assert unpacked.tobytes() == codes.tobytes()


@given(case=CASES, table=TABLES, wide=st.booleans(), workers=st.integers(1, 8))
@SETTINGS
def test_lookup_sum(case, table, wide, workers):
    dtype = np.uint16 if wide or table.granularity * workers > 255 else np.uint8
    rng = np.random.default_rng(case.seed)
    codes = [rng.integers(0, 1 << table.bits, case.size, dtype=np.uint8) for _ in range(workers)]
    aggregate = case.empty(case.size, dtype)
    for worker, worker_codes in enumerate(codes):
        packed = case.place(reference.pack(worker_codes, table.bits))
        core.lookup_sum(packed, table.array, aggregate, bits=table.bits, add=worker > 0)
    np.testing.assert_array_equal(aggregate, reference.lookup_sum(codes, table.values))


@given(case=CASES, data=st.data())
@SETTINGS
def test_max_norms(case, data):
    norms = st.lists(st.sampled_from([0, 0.5, 1, 2, np.inf, np.nan]), min_size=case.size % 97, max_size=case.size % 97)
    first, second = (np.array(data.draw(norms), np.float32) for _ in range(2))
    maximum = case.empty(4 * first.size, np.uint8)
    for worker, sent in enumerate((first, second)):
        core.max_norms_be(case.place(sent.astype(">f4").view(np.uint8)), maximum, add=worker > 0)
    assert maximum.tobytes() == reference.max_norms([first, second]).astype(">f4").tobytes()


@given(case=CASES, wide=st.booleans(), dtype=st.sampled_from(["float32", "float16", "bfloat16"]), data=st.data())
@SETTINGS
def test_inverse_rotate_and_decode(case, wide, dtype, data):
    table = LookupTable.paper()
    chunk = data.draw(st.sampled_from([64, 128, 1024, 4096]))
    rng = np.random.default_rng(case.seed)
    aggregate = case.place(rng.integers(0, 241, case.padded()).astype(np.uint16 if wide else np.uint8))
    contributions = rng.integers(0, 9, -(-case.padded() // chunk), dtype=np.uint16)
    if data.draw(st.booleans(), label="nothing lost"):
        contributions[:] = 8
    special = st.sampled_from([0.0, 0.5, 1.0, 3.0, np.inf, np.nan])
    maxima = case.place(np.array([data.draw(special) for _ in range(case.blocks())], np.float32))
    arguments = {"coordinates": case.size, "codes_per_chunk": chunk, "rotation_block": case.block,
                 "granularity": table.granularity, "threshold": table.threshold}  # fmt: skip
    twin = (aggregate, contributions, maxima, *arguments.values())
    expected_rotated = reference.dequantize(*twin, ends=case.ends)
    rotated = case.place(expected_rotated)
    restored = case.empty(case.size, np.float32)
    core.inverse_rotate(rotated, restored, rotation_block=case.block, **case.keywords())
    expected = reference.inverse_rotate(expected_rotated, case.size, case.block, case.key, case.ends)
    np.testing.assert_array_equal(restored, expected)
    out = case.empty(case.size, np.uint16 if dtype == "bfloat16" else np.dtype(dtype).type)
    core.decode(aggregate, contributions, maxima, out, **arguments, **case.keywords())
    expected, as_float = as_dtype(reference.decode(*twin, case.key, case.ends), dtype)
    if dtype == "bfloat16":
        out, expected = (out.astype(np.uint32) << 16).view(np.float32), as_float
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 12345])
@pytest.mark.parametrize("block", [8192, 1 << 17, 1 << 20])
def test_whole_partitions(size, block):
    case, table = Case(size, block, Key(7, 1, 2), 4, 0), LookupTable.paper()
    gradient = case.normal(size)
    rotated, norms = case.empty(case.padded(), np.float32), case.empty(case.blocks(), np.float32)
    core.rotate(gradient, None, rotated, rotation_block=block, **case.keywords())
    core.block_norms(gradient, None, norms, rotation_block=block)
    expected_rotated, expected_norms = reference.rotate(gradient, None, block, case.key)
    assert rotated.tobytes() == expected_rotated.tobytes()
    assert norms.tobytes() == expected_norms.tobytes()
    rounding = Rounding(4, 0x8000)
    expected = reference.quantize(rotated, norms, size, block, table.values, table.threshold, case.key, rounding)
    packed = case.empty(core.code_bytes(case.padded(), 4), np.uint8)
    core.quantize(
        rotated, norms, packed, coordinates=size, rotation_block=block, values=table.array, bits=4,
        threshold=table.threshold, keep_error=True, **rounding._asdict(), **case.keywords(),
    )  # fmt: skip
    assert packed.tobytes() == reference.pack(expected.codes, 4).tobytes()
    assert rotated.tobytes() == expected.error.tobytes()
    restored = case.empty(size, np.float32)
    core.inverse_rotate(rotated, restored, rotation_block=block, **case.keywords())
    assert restored.tobytes() == reference.inverse_rotate(expected.error, size, block, case.key).tobytes()
    rng = np.random.default_rng(5)
    for sums in (np.uint8, np.uint16):
        aggregate = rng.integers(0, 241, case.padded()).astype(sums)
        contributions = np.full(-(-case.padded() // 1024), 8, np.uint16)
        contributions[::3] = 7
        core.decode(
            aggregate, contributions, norms, restored, coordinates=size, codes_per_chunk=1024, rotation_block=block,
            granularity=table.granularity, threshold=table.threshold, **case.keywords(),
        )  # fmt: skip
        wanted = reference.decode(
            aggregate, contributions, norms, size, 1024, block, table.granularity, table.threshold, case.key
        )
        np.testing.assert_array_equal(restored, wanted)


def test_wrong_arrays_are_refused():
    x, rotated, norms = np.zeros(100, np.float32), np.zeros(128, np.float32), np.zeros(1, np.float32)
    keywords = {"rotation_block": 128, "seed": 0, "tensor": 0, "round": 0}
    core.rotate(x, None, rotated, **keywords)
    core.block_norms(x, None, norms, rotation_block=128)
    for bad, reason in ((x[::2], "not C-contiguous"), (x.astype(np.float64), "expected float32, float16 or uint16")):
        with pytest.raises(InputError, match=f"gradient: .*{reason}"):
            core.rotate(bad, None, rotated, **keywords)
        with pytest.raises(InputError, match=f"gradient: .*{reason}"):
            core.block_norms(bad, None, norms, rotation_block=128)
    with pytest.raises(InputError, match=r"rotated: expected C-contiguous float32\[128\]"):
        core.rotate(x, None, rotated[:127], **keywords)
    with pytest.raises(InputError, match=r"residual: expected C-contiguous float32\[100\]"):
        core.rotate(x, np.zeros(99, np.float32), rotated, **keywords)
    with pytest.raises(InputError, match=r"norms: expected C-contiguous float32\[1\]"):
        core.block_norms(x, None, np.zeros(2, np.float32), rotation_block=128)
    with pytest.raises(ConfigurationError, match="rotation_block must be a power of two"):
        core.rotate(x, None, rotated, **(keywords | {"rotation_block": 100}))
