"""CPU kernels (C++20, byteps_thc/csrc). NumPy arrays, C-contiguous, any alignment; wrong shapes raise InputError.

Sizes below: n coordinates of a partition, P = padded_size(n), B = len(block_sizes(n)). Keys: `seed` (64 bits), `tensor`
and `round` (32 bits) select the signs, the same on all workers; with `domain` (32 bits) and `phase` (16 bits) they
select the rounding bits (byteps_thc/_scheme/rounding.py).
The rotation is not normalised (H D x, paper section 5.1 without 1/sqrt(d)); its inverse divides by the block size.
A coordinate of a rotated block is then about N(0, norm^2), so the clamp is threshold * max_norm (section 5.3).
`ends`: where, besides, rotation blocks end: ascending multiples of 128 between 0 and n.
`pool`: threads that share the work of a large call; None: the calling thread alone. The results have the same bits.
"""

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U64 = npt.NDArray[np.uint64]
Gradient = npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16]

ARITHMETIC: int
"""number of the arithmetic of these kernels"""

class ThreadPool:
    """Threads that share the work of a kernel: the calling one, and threads - 1 helpers that sleep between calls.

    Any number of threads may call kernels with one pool at the same time. In a forked child the pool of its parent has
    no helpers, and kernels run on the calling thread. The helpers end when the pool is garbage-collected.
    """

    def __init__(self, threads: int) -> None:
        """threads: 1 .. 8; others raise ConfigurationError."""

    @property
    def threads(self) -> int:
        """Threads that work on a call, the calling one among them."""

class BlockTable:
    """Blocks of up to 64 coordinates of one tensor each, which ranks rotate together and give a scale."""

    def __init__(self, words: npt.NDArray[np.int64], first: int = 0) -> None:
        """words: int64[B], a block's first coordinate << 7 | number of coordinates, 0 .. 64; ascending and disjoint,
        else InputError. first: number of the first block in its gradient, which selects random numbers.
        """

    @property
    def words(self) -> npt.NDArray[np.int64]:
        """A copy."""
    @property
    def first(self) -> int: ...
    def __len__(self) -> int: ...
    def part(self, begin: int, end: int) -> BlockTable:
        """Return blocks begin .. end - 1, which keep their random numbers and share the words in memory."""
    def numbered(self, first: int) -> BlockTable:
        """Return the same blocks with the numbers of others, which share the words in memory."""
    def shares_words(self, other: BlockTable) -> bool:
        """Return whether both have the same words in memory."""

def padded_size(coordinates: int, rotation_block: int) -> int: ...
def block_sizes(coordinates: int, rotation_block: int, ends: U64 | None = None) -> npt.NDArray[np.int64]: ...
def code_bytes(count: int, bits: int) -> int:
    """Bytes of `count` packed codes."""

def block_norms(
    gradient: Gradient,
    residual: F32 | None,
    norms: F32,
    *,
    rotation_block: int,
    ends: U64 | None = None,
    pool: ThreadPool | None = None,
) -> None:
    """norms[B] = Euclidean norms of the blocks of gradient[n] + residual[n]."""

def segment_norms(
    gradient: Gradient,
    residual: F32 | None,
    starts: U64,
    sizes: U64,
    norms: F32,
    *,
    pool: ThreadPool | None = None,
) -> None:
    """norms[S] = Euclidean norms of gradient + residual in segment i: sizes[i] coordinates from starts[i] on.

    starts, sizes: [S], ascending and disjoint; InputError for others.
    """

def scale_segments(
    values: Gradient,
    addend: F32 | None,
    starts: U64,
    sizes: U64,
    factors: F32,
    out: Gradient,
    *,
    pool: ThreadPool | None = None,
) -> None:
    """out[n] = (values[n] + addend[n]) * factors[i] in segment i, +0 where a factor is 0; values + addend elsewhere.

    starts, sizes: see segment_norms(). out: may be values or addend, and may have another type.
    """

def encode(
    gradient: Gradient,
    residual: F32 | None,
    max_norms: F32,
    codes: U8,
    *,
    rotation_block: int,
    values: U16,
    bits: int,
    threshold: float,
    seed: int,
    tensor: int,
    round: int,
    domain: int,
    phase: int,
    keep_error: bool,
    ends: U64 | None = None,
    pool: ThreadPool | None = None,
) -> int:
    """codes[code_bytes(P, bits)] = gradient + residual, rotated, clamped to +-threshold * max_norms[block], quantized.

    keep_error: residual[n] becomes what was lost, rotated back; else it is only read, and may be None. Returns the
    number of clamped coordinates. Blocks with a zero max norm get the middle codes; blocks with a non-finite max norm
    get code 0 and a zero error (the caller decides what to do with them).
    """

def decode(
    aggregate: U8 | U16,
    contributions: U16,
    max_norms: F32,
    out: Gradient,
    *,
    coordinates: int,
    codes_per_chunk: int,
    rotation_block: int,
    granularity: int,
    threshold: float,
    seed: int,
    tensor: int,
    round: int,
    ends: U64 | None = None,
    pool: ThreadPool | None = None,
) -> None:
    """out[n] = (aggregate / contributions[chunk] * 2/g - 1) * threshold * max_norm[block], rotated back.

    Before it is rotated back: 0 where a chunk has no contributions, or the max norm is zero; NaN where the max norm is
    not finite.
    """

def scale_bytes(blocks: int) -> int:
    """Bytes of the scales of B blocks: 17 for each tile of 16 blocks, whose common exponent comes first."""

def encode_blocks(
    gradient: Gradient,
    codes: U8,
    scales: U8,
    *,
    blocks: BlockTable,
    bits: int,
    seed: int,
    tensor: int,
    round: int,
    rank: int = 0,
    ranks: int = 1,
    down: bool = False,
    pool: ThreadPool | None = None,
) -> None:
    """Rotate the blocks of a gradient, round them to 2^bits levels with dither, and pack the codes.

    gradient: [blocks.end] or more. codes: [8 * bits * B]. scales: [scale_bytes(B)]. bits: 1 .. 8. rank, ranks: whose
    dither. down: with the random numbers of averages. A block whose largest rotated value is below 2^-100 has the scale
    0; one above 2^100 or not finite decodes to NaN. Raises InputError and ConfigurationError for others.
    """

def decode_blocks(
    codes: U8,
    scales: U8,
    out: Gradient,
    *,
    blocks: BlockTable,
    bits: int,
    seed: int,
    tensor: int,
    round: int,
    down: bool = False,
    pool: ThreadPool | None = None,
) -> int:
    """Write the average of the ranks, added in their order, to the coordinates of the blocks; others stay.

    Return the sum modulo 2^32 of the bits of the averages as float32, without NaN.

    codes: [ranks, 8 * bits * B], scales: [ranks, scale_bytes(B)], as encode_blocks() wrote them; rows may lie apart.
    out: [blocks.end] or more.
    """

def recode_blocks(
    codes: U8,
    scales: U8,
    down_codes: U8,
    down_scales: U8,
    *,
    blocks: BlockTable,
    bits: int,
    down_bits: int,
    seed: int,
    tensor: int,
    round: int,
    pool: ThreadPool | None = None,
) -> None:
    """decode_blocks() of the ranks' codes, then encode_blocks() of the average with down=True, in one pass."""

def lookup_sum(
    codes: U8,
    values: U16,
    aggregate: U8 | U16,
    *,
    bits: int,
    add: bool,
) -> None:
    """aggregate[i] (add: +=, else =) values[code i] for i < len(aggregate). Caller guarantees no overflow."""

def checksum(array: F32 | U8 | U16) -> int:
    """Return 32 bits of the bytes of a contiguous array, as of a packet's payload (thc/checksum.h)."""

def instruction_sets() -> list[str]:
    """Instruction sets compiled in and supported here, best first."""
