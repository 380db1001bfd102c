"""THC in plain NumPy, one function per stage: the algorithm to read, and the oracle the kernels are tested against.

Every stage gives the same bits as the compiled _core (float32 arithmetic, one rounding per operation). Names and shapes
are _core.pyi's, with results returned instead of written. Ranks are in block_reference.py. In order:

    block_sizes, signs -> rotate, norms -> max_norms -> quantize (rounding_bits) -> pack
    -> lookup_sum -> dequantize -> inverse_rotate (or decode for both)
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from byteps_thc._base.wire.layout import MIN_ROTATION_BLOCK
from byteps_thc._scheme.rounding import Rounding
from thc_lab.block_rounds import Key

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]

_SIGN_DOMAIN, _SIGN_ROUNDS = 0, 10
_ROUNDING_ROUNDS = 7
_NORM_LANES = 16
_MAX_EXACT_BLOCK = 1 << 16  # 8-bit sums of so many coordinates add up to less than 2^24


def block_sizes(coordinates: int, rotation_block: int, ends: Sequence[int] = ()) -> list[int]:
    """Cut a partition: full blocks, then ever smaller powers of two, the last of 64 padded with zeros; the same again
    behind each of the ends.
    """
    padded = -(-coordinates // MIN_ROTATION_BLOCK) * MIN_ROTATION_BLOCK
    sizes = []
    for start, end in itertools.pairwise([0, *ends, padded]):
        rest, size = end - start, rotation_block
        while rest:
            while size > rest:
                size //= 2
            sizes.append(size)
            rest -= size
    return sizes


def _blocks(coordinates: int, rotation_block: int, ends: Sequence[int] = ()) -> list[slice]:
    edges = np.cumsum([0, *block_sizes(coordinates, rotation_block, ends)]).tolist()
    return [slice(start, end) for start, end in itertools.pairwise(edges)]


def philox(blocks: npt.NDArray[np.uint64], domain: int, key: Key, rounds: int) -> U32:
    """Philox4x32 (Salmon et al., SC'11): uint32[len(blocks), 4], counter (block, domain, tensor, round), key seed."""
    mask = np.uint64(0xFFFFFFFF)
    c = [blocks.astype(np.uint64), *(np.full(len(blocks), w, np.uint64) for w in (domain, key.tensor, key.round))]
    low, high = key.seed & 0xFFFFFFFF, key.seed >> 32
    for _ in range(rounds):
        product0, product1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (product1 >> np.uint64(32)) ^ c[1] ^ np.uint64(low),
            product1 & mask,
            (product0 >> np.uint64(32)) ^ c[3] ^ np.uint64(high),
            product0 & mask,
        ]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=1).astype(np.uint32)


def signs(count: int, key: Key, domain: int = _SIGN_DOMAIN) -> F32:
    """Diagonal of D: float32[count] of +-1, one random bit per coordinate, a set bit for -1."""
    j = np.arange(count)
    words = philox(np.arange(-(-count // 128), dtype=np.uint64), domain, key, _SIGN_ROUNDS)
    bits = words[j // 128, j // 32 % 4] >> (j % 32).astype(np.uint32) & 1
    return np.where(bits == 1, np.float32(-1), np.float32(1))


def rounding_bits(count: int, key: Key, rounding: Rounding) -> U16:
    """uint16[count], uniform: 16 bits per coordinate, in the order in which SIMD lanes use them, plus the phase."""
    j = np.arange(count)
    blocks = np.arange(-(-count // 64) * 8, dtype=np.uint64)
    words = philox(blocks, rounding.domain, key, _ROUNDING_ROUNDS)
    word = words[8 * (j // 64) + j % 16 // 2, j % 64 // 16]
    halves: U16 = (word >> (16 * (j % 2)).astype(np.uint32)).astype(np.uint16)
    return halves + np.uint16(rounding.phase)  # modulo 2^16


def hadamard(block: F32) -> F32:
    """H x by butterflies, not normalised; len(block) is a power of two."""
    x, half = block.copy(), 1
    while half < len(x):
        pairs = x.reshape(-1, 2, half)
        a, b = pairs[:, 0].copy(), pairs[:, 1].copy()
        pairs[:, 0], pairs[:, 1] = a + b, a - b
        half *= 2
    return x


def norm(block: F32) -> np.float32:
    """Euclidean norm: squares summed in double in 16 lanes, the lanes pairwise, so that SIMD gets the same bits."""
    squares = np.square(block, dtype=np.float64).reshape(-1, _NORM_LANES)
    lanes = np.add.accumulate(squares, axis=0)[-1]
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    with np.errstate(over="ignore"):
        return np.float32(np.sqrt(lanes[0]))


def float16(x: F32) -> npt.NDArray[np.float16]:
    """Round to nearest even; finite numbers stay finite."""
    largest = np.finfo(np.float16).max
    return np.where(np.isfinite(x), np.clip(x, -largest, largest), x).astype(np.float16)


def bfloat16(x: F32) -> U16:
    """The upper halves of float32 numbers, rounded to nearest, ties to an even bit."""
    bits = x.view(np.uint32).astype(np.uint64)
    below, even = bits & np.uint64(0xFFFF), (bits >> np.uint64(16)) & np.uint64(1) == 0
    up = (below > 0x8000) | ((below == 0x8000) & ~even)
    return ((bits >> np.uint64(16)) + up).astype(np.uint16)


def from_bfloat16(bits: U16) -> F32:
    """Those as float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def as_dtype(x: F32, dtype: str) -> tuple[npt.NDArray[np.generic], F32]:
    """x in a format, and its values there in float32."""
    if dtype == "bfloat16":
        kept = bfloat16(x)
        return kept, from_bfloat16(kept)
    with np.errstate(over="ignore"):
        narrow = x.astype(dtype)
    return narrow, narrow.astype(np.float32)


def rotate(
    gradient: npt.NDArray[np.floating],
    residual: F32 | U16 | None,
    rotation_block: int,
    key: Key,
    ends: Sequence[int] = (),
) -> tuple[F32, F32]:
    """(H D x per block, norms of x per block), x = gradient + residual, padded (sections 5.1 and 5.3)."""
    blocks = _blocks(len(gradient), rotation_block, ends)
    x = np.zeros(blocks[-1].stop if blocks else 0, np.float32)
    x[: len(gradient)] = gradient
    if residual is not None:
        x[: len(gradient)] += residual
    norms = np.array([norm(x[block]) for block in blocks], np.float32)
    flipped = x * signs(len(x), key)
    return np.concatenate([hadamard(flipped[block]) for block in blocks] or [flipped]), norms


def max_norms(norms: list[F32]) -> F32:
    """Maximum over the workers, ordered as unsigned integers: NaN above infinity above every number."""
    maxima: U32 = np.max([worker.view(np.uint32) for worker in norms], axis=0)
    return maxima.view(np.float32)


class ClampRange(NamedTuple):
    """A block is clamped to +-limit; table value t stands for t * step - limit; scale is g / (2 limit) or 0."""

    limit: np.float32
    step: np.float32
    scale: np.float32

    @classmethod
    def of(cls, max_norm: np.float32, threshold: float, granularity: int) -> "ClampRange | None":
        """None when the gradient of some worker is not finite (or so large that fp32 overflows)."""
        g = np.float32(granularity)
        with np.errstate(all="ignore"):
            limit = np.float32(threshold) * max_norm
            scale = g * np.float32(0.5) / limit
            if not np.isfinite(np.float32(2) * limit):
                return None
            return cls(limit, np.float32(2) * limit / g, scale if np.isfinite(scale) else np.float32(0))


@dataclass(frozen=True)
class Quantized:
    """codes: uint8[P]. error: float32[P], rotated - quantized. clamped: coordinates beyond the clamp."""

    codes: U8
    error: F32
    clamped: int


def quantize(
    rotated: F32,
    maxima: F32,
    coordinates: int,
    rotation_block: int,
    values: tuple[int, ...],
    threshold: float,
    key: Key,
    rounding: Rounding,
    ends: Sequence[int] = (),
) -> Quantized:
    """Clamp to +-threshold * max norm and round to one of the two nearest quantization values, unbiased (section 5.2).

    A coordinate x becomes u in [0, g]; between T[z] and T[z+1] it goes up with probability (u - T[z]) / gap.
    """
    table = np.array(values[: values[-1] + 1], np.float32)  # codes above the granularity are not used
    half = table[-1] * np.float32(0.5)
    gap_inverse = np.float32(1) / np.diff(table)
    bits = rounding_bits(len(rotated), key, rounding)
    chance = (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-16)
    codes, error, clamped = np.zeros(len(rotated), np.uint8), np.zeros(len(rotated), np.float32), 0
    for block, max_norm in zip(_blocks(coordinates, rotation_block, ends), maxima, strict=True):
        clamp = ClampRange.of(max_norm, threshold, values[-1])
        if clamp is None:
            continue
        x = rotated[block]
        u = np.clip(x * clamp.scale + half, np.float32(0), table[-1])
        z = np.minimum(np.searchsorted(table, u, side="right") - 1, len(table) - 2)
        up = chance[block] < (u - table[z]) * gap_inverse[z]
        codes[block] = z + up
        error[block] = x - (table[codes[block]] * clamp.step - clamp.limit)
        clamped += int(np.count_nonzero(np.abs(x) > clamp.limit))
    return Quantized(codes, error, clamped)


def pack(numbers: U8 | U16, bits: int) -> U8:
    """Numbers as one bit stream, most significant bit first; the last byte is filled with zeros."""
    stream = numbers.astype(np.uint16)[:, None] >> np.arange(bits - 1, -1, -1, dtype=np.uint16) & 1
    return np.packbits(stream.astype(np.uint8).reshape(-1))


def unpack(packed: U8, bits: int, count: int) -> U8:
    """Inverse of pack, of numbers of up to 8 bits."""
    stream = np.unpackbits(packed, count=count * bits).reshape(count, bits)
    numbers: U8 = (stream @ (1 << np.arange(bits - 1, -1, -1))).astype(np.uint8)
    return numbers


def lookup_sum(codes: list[U8], values: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Sum of table values over the workers: all that an aggregator does. Unpacked codes, exact integers."""
    table = np.array(values, np.int64)
    total = np.zeros_like(codes[0], dtype=np.int64)
    for worker in codes:
        total += table[worker]
    return total


def dequantize(
    aggregate: npt.NDArray[np.integer],
    contributions: U8 | U16,
    maxima: F32,
    coordinates: int,
    codes_per_chunk: int,
    rotation_block: int,
    granularity: int,
    threshold: float,
    normalise: bool = False,
    ends: Sequence[int] = (),
) -> F32:
    """Average rotated gradient: (aggregate / contributions * 2/g - 1) * threshold * max norm.

    0 where a chunk has no contributions, NaN where the max norm is not finite. normalise: times 1/d, the factor of the
    inverse rotation, a power of two and so exact.
    """
    rotated = np.zeros(len(aggregate), np.float32)
    for block, max_norm in zip(_blocks(coordinates, rotation_block, ends), maxima, strict=True):
        clamp = ClampRange.of(max_norm, threshold, granularity)
        if clamp is None:
            rotated[block] = np.nan
            continue
        workers = contributions[np.arange(block.start, block.stop) // codes_per_chunk].astype(np.float32)
        factor = np.float32(1 / (block.stop - block.start)) if normalise else np.float32(1)
        slope = clamp.step / np.maximum(workers, np.float32(1)) * factor
        value = aggregate[block].astype(np.float32) * slope - clamp.limit * factor
        rotated[block] = np.where(workers > 0, value, np.float32(0))
    return rotated


def inverse_rotate(rotated: F32, coordinates: int, rotation_block: int, key: Key, ends: Sequence[int] = ()) -> F32:
    """(1/d) D H per block, padding cut off."""
    out = np.zeros(len(rotated), np.float32)
    for block in _blocks(coordinates, rotation_block, ends):
        out[block] = hadamard(rotated[block] * np.float32(1 / (block.stop - block.start)))
    return (out * signs(len(out), key))[:coordinates]


def decode(
    aggregate: npt.NDArray[np.integer],
    contributions: U8 | U16,
    maxima: F32,
    coordinates: int,
    codes_per_chunk: int,
    rotation_block: int,
    granularity: int,
    threshold: float,
    key: Key,
    ends: Sequence[int] = (),
) -> F32:
    """inverse_rotate(dequantize(...)), the factor 1/d moved to the first step: a power of two, and so exact.

    Blocks of 8-bit sums whose chunks all have the same contributions are transformed before they are mapped: t = H sums
    is then exact, rounding leaves t * slope, and H maps the constant limit to coordinate 0 alone.
    """
    out = np.zeros(len(aggregate), np.float32)
    shape = (coordinates, codes_per_chunk, rotation_block, granularity, threshold)
    mapped = dequantize(aggregate, contributions, maxima, *shape, normalise=True, ends=ends)
    for block, max_norm in zip(_blocks(coordinates, rotation_block, ends), maxima, strict=True):
        size = block.stop - block.start
        clamp = ClampRange.of(max_norm, threshold, granularity)
        workers = np.unique(contributions[block.start // codes_per_chunk : (block.stop - 1) // codes_per_chunk + 1])
        exact = aggregate.dtype == np.uint8 and size <= _MAX_EXACT_BLOCK and len(workers) == 1 and workers[0] > 0
        if clamp is None or not exact:
            out[block] = hadamard(mapped[block])
            continue
        slope = clamp.step / np.float32(workers[0]) * np.float32(1 / size)
        out[block] = hadamard(aggregate[block].astype(np.float32)) * slope
        out[block.start] -= clamp.limit
    return (out * signs(len(out), key))[:coordinates]
