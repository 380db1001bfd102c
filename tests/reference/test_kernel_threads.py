"""Every kernel gives the same bits with any number of threads."""

from collections.abc import Callable

import numpy as np
import pytest

from byteps_thc import LookupTable
from byteps_thc._native import _core

SIZES = [0, 1, 63, 8191, 8192, 100_001, 1_000_003]
#: kernels divide calls of half a million coordinates or more, or of a few millions: block_norms at 2^20
DIVIDED = 1_200_003
KEY = {"seed": 2**63 + 5, "tensor": 3, "round": 2**31}
TABLES = {bits: LookupTable.uniform(bits) for bits in (1, 2, 3, 5, 6, 7, 8)} | {4: LookupTable.paper()}
FORMATS = ["float32", "float16", "bfloat16"]
CODES_PER_CHUNK = 11 * 64  # chunks do not end where the threads' ranges do
Arrays = list[np.ndarray | int]


@pytest.fixture(scope="module")
def pools() -> list[_core.ThreadPool]:
    return [_core.ThreadPool(threads) for threads in (1, 2, 3, 8)]


def same_with_any_threads(kernel: Callable[[_core.ThreadPool | None], Arrays], pools: list[_core.ThreadPool]) -> None:
    """The arrays and numbers that `kernel` returns do not depend on the pool."""
    expected = kernel(None)
    for pool in pools:
        for result, wanted in zip(kernel(pool), expected, strict=True):
            assert np.asarray(result).tobytes() == np.asarray(wanted).tobytes(), f"{pool.threads} threads"


def gradient_of(size: int, dtype: str) -> np.ndarray:
    x = np.random.default_rng(size).standard_normal(size, np.float32)
    return (x.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else x.astype(dtype)


def encoded(
    gradient: np.ndarray, residual: np.ndarray | None, *, bits: int, block: int, pool: _core.ThreadPool | None
) -> Arrays:
    """Norms, codes, clamped coordinates and the next residual."""
    norms = np.zeros(len(_core.block_sizes(gradient.size, block)), np.float32)
    codes = np.zeros(_core.code_bytes(_core.padded_size(gradient.size, block), bits), np.uint8)
    carried = None if residual is None else residual.copy()
    _core.block_norms(gradient, carried, norms, rotation_block=block, pool=pool)
    clamped = _core.encode(
        gradient, carried, norms, codes, rotation_block=block, values=TABLES[bits].array, bits=bits, threshold=1.5,
        domain=1, phase=0x5555, keep_error=carried is not None, pool=pool, **KEY,
    )  # fmt: skip
    return [norms, codes, clamped, *([] if carried is None else [carried])]


@pytest.mark.parametrize("size", [*SIZES, DIVIDED])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("with_residual", [False, True])
def test_block_norms_and_encode(pools, size, dtype, with_residual):
    gradient = gradient_of(size, dtype)
    residual = gradient_of(size, "float32")[::-1].copy() if with_residual else None
    same_with_any_threads(lambda pool: encoded(gradient, residual, bits=4, block=8192, pool=pool), pools)


@pytest.mark.parametrize("bits", TABLES)
@pytest.mark.parametrize("block", [64, 8192, 1 << 18, 1 << 20])
def test_encode_with_every_width_and_block(pools, bits, block):
    gradient, residual = gradient_of(DIVIDED, "float32"), gradient_of(DIVIDED, "float32")[::-1].copy()
    same_with_any_threads(lambda pool: encoded(gradient, residual, bits=bits, block=block, pool=pool), pools)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("sums", [np.uint8, np.uint16])
@pytest.mark.parametrize("block", [64, 8192, 1 << 18])
def test_decode(pools, size, dtype, sums, block):
    rng = np.random.default_rng(size)
    padded = _core.padded_size(size, block)
    aggregate = rng.integers(0, 256, padded, sums)
    contributions = rng.integers(0, 3, -(-padded // CODES_PER_CHUNK), np.uint8)
    norms = rng.random(len(_core.block_sizes(size, block)), np.float32)

    def kernel(pool: _core.ThreadPool | None) -> Arrays:
        out = gradient_of(size, dtype)
        _core.decode(
            aggregate, contributions, norms, out, coordinates=size, codes_per_chunk=CODES_PER_CHUNK,
            rotation_block=block, granularity=30, threshold=2.0, pool=pool, **KEY,
        )  # fmt: skip
        return [out]

    same_with_any_threads(kernel, pools)
