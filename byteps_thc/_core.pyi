"""CPU kernels (C++20, byteps_thc/csrc). NumPy arrays, C-contiguous, any alignment; wrong shapes raise InputError.

Sizes below: n coordinates of a partition, P = padded_size(n), B = len(block_sizes(n)). Keys: `seed` (64 bits), `tensor`
and `round` (32 bits) select the signs, the same on all workers; with `domain` (32 bits) and `phase` (16 bits) they
select the rounding bits (byteps_thc/rounding.py).
The rotation is not normalised (H D x, paper section 5.1 without 1/sqrt(d)); inverse_rotate divides by the block size.
A coordinate of a rotated block is then about N(0, norm^2), so the clamp is threshold * max_norm (section 5.3).
rotate, quantize, inverse_rotate and dequantize are stages of encode and decode, for tests against reference.py.
`pool`: threads that share the work of a large call; None: the calling thread alone. The results have the same bits.
"""

import enum

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
#: float32, float16, or uint16 holding bfloat16 bits
Gradient = npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16]

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

def padded_size(coordinates: int, rotation_block: int) -> int: ...
def block_sizes(coordinates: int, rotation_block: int) -> npt.NDArray[np.int64]: ...
def code_bytes(count: int, bits: int) -> int:
    """Bytes of `count` packed numbers of 1 .. 16 bits."""

def table_hash(bits: int, values: U16) -> int: ...
def block_norms(
    gradient: Gradient,
    residual: F32 | None,
    norms: F32,
    *,
    rotation_block: int,
    pool: ThreadPool | None = None,
) -> None:
    """norms[B] = Euclidean norms of the blocks of gradient[n] + residual[n]."""

def rotate(
    gradient: Gradient,
    residual: F32 | None,
    rotated: F32,
    norms: F32,
    *,
    rotation_block: int,
    seed: int,
    tensor: int,
    round: int,
) -> None:
    """rotated[P] = H D (gradient + residual) per block; norms[B] = Euclidean norms of its blocks (one fused pass)."""

def quantize(
    rotated: F32,
    max_norms: F32,
    codes: U8,
    *,
    coordinates: int,
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
) -> int:
    """codes[code_bytes(P, bits)] = packed stochastic quantization of clamp(rotated, +-threshold * max_norms[block]).

    keep_error: rotated is overwritten with rotated - quantized (inverse_rotate of it is the error-feedback residual).
    Returns the number of clamped coordinates. Blocks with a zero max norm get the middle codes; blocks with a
    non-finite max norm get code 0 and, with keep_error, a zero error (the caller decides what to do with them).
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
    pool: ThreadPool | None = None,
) -> int:
    """rotate, quantize and, with keep_error, inverse_rotate of the error into residual[n], tile by tile in the cache.

    The same to the bit as the three, for a gradient whose max norms are known (block_norms). residual is only read
    without keep_error, and may be None then. Returns the number of clamped coordinates.
    """

def inverse_rotate(rotated: F32, out: F32, *, rotation_block: int, seed: int, tensor: int, round: int) -> None:
    """out[n] = (1/d) D H rotated[P]; `rotated` is used as scratch and left undefined."""

def dequantize(
    aggregate: U8 | U16,
    contributions: U8 | U16,
    max_norms: F32,
    rotated: F32,
    *,
    coordinates: int,
    codes_per_chunk: int,
    rotation_block: int,
    granularity: int,
    threshold: float,
) -> None:
    """rotated[P] = (aggregate / contributions[chunk] * 2/g - 1) * threshold * max_norm[block]; 0 where a chunk has no
    contributions; NaN where the max norm is not finite; 0 where it is zero."""

def decode(
    aggregate: U8 | U16,
    contributions: U8 | U16,
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
    pool: ThreadPool | None = None,
) -> None:
    """dequantize + inverse_rotate in one pass per block; out[n] float32, float16 or bfloat16 bits."""

def lookup_sum(
    codes: U8,
    values: U16,
    aggregate: U8 | U16,
    *,
    bits: int,
    add: bool,
    pool: ThreadPool | None = None,
) -> None:
    """aggregate[i] (add: +=, else =) values[code i] for i < len(aggregate). Caller guarantees no overflow."""

def max_norms(norms: F32, maximum: F32, *, add: bool) -> None:
    """maximum[i] = max(maximum[i], norms[i]) (add) or norms[i], ordered as unsigned integers: NaN wins."""

def pack(numbers: U8 | U16, packed: U8, *, bits: int, pool: ThreadPool | None = None) -> None:
    """packed = numbers as a bit stream, most significant bit first; zeros fill the last byte.

    bits: of each number; 1 .. 8 for uint8, 1 .. 16 for uint16.
    """

def unpack(packed: U8, numbers: U8 | U16, *, bits: int, pool: ThreadPool | None = None) -> None:
    """Inverse of pack."""

class SlotOutcome(enum.Enum):
    """What became of a contribution (csrc/thc/slot_pool.h)."""

    ABSORBED = 0
    COMPLETED = 1
    REPLAY = 2
    INCOMPLETE = 3
    DUPLICATE = 4
    STRAGGLER = 5
    ORDER_MISMATCH = 6
    INVALID = 7

class SlotReply:
    """What SlotPool.contribute returns."""

    @property
    def outcome(self) -> SlotOutcome: ...
    @property
    def contributions(self) -> int:
        """Workers in the aggregate so far."""

    @property
    def bitmap(self) -> int:
        """Bit w: worker w is in the aggregate."""

    @property
    def count(self) -> int:
        """Codes or norms in the result: of norms as many as the first worker had."""

    @property
    def result(self) -> bytes:
        """COMPLETED, REPLAY: the payload to send, in wire order; else empty."""

class SlotPool:
    """The aggregator's slot state machine (docs/protocol.md, "Slots"), as thc-ps runs it. Not thread-safe.

    values, bits: the lookup table. Raises ConfigurationError when a setting is out of range or granularity * workers
    does not fit value_bits.
    """

    def __init__(
        self,
        values: U16,
        *,
        bits: int,
        slots: int,
        norm_slots: int,
        codes_per_packet: int,
        workers: int,
        quorum: int,
        value_bits: int,
    ) -> None: ...
    def contribute(
        self,
        *,
        slot: int,
        round: int,
        worker: int,
        retransmit: bool,
        abstain: bool = False,
        partition: int,
        chunk: int,
        count: int,
        payload: bytes,
    ) -> SlotReply:
        """Apply one packet; the payload is packed codes or big-endian fp32 norms.

        Fields out of range give SlotOutcome.INVALID; a payload that is not as long as `count` says raises InputError.
        """

    def reset(self) -> None:
        """Forget everything, as after construction."""

    @property
    def slots_in_use(self) -> int:
        """Slots with a round that began and is not complete."""

def instruction_sets() -> list[str]:
    """Instruction sets compiled in and supported here, best first."""

def use_instruction_set(name: str | None) -> None:
    """Limit kernels to one instruction set (tests, benchmarks); "naive" selects the scalar twins; None: the best."""
