"""Numbers of 1 to 16 bits as one bit stream, most significant bit first. reference.pack and unpack are the oracles."""

from __future__ import annotations

from byteps_thc.gpu.frontend import L, arange, constexpr, conv, jit, permute_bytes
from byteps_thc.gpu.layouts import grid, of_columns, of_rows, streamed

#: Numbers, or words of the stream, of a program.
TILE = 1024
#: Warps of a program.
WARPS = 4
#: Rows of 32 numbers of a program of unpack_rows_kernel, one a thread.
ROWS = 128
_ROWS = constexpr(ROWS)
_TILE, _WARPS = constexpr(TILE), constexpr(WARPS)


@jit
def load_number(stream, i, count, size, BITS: constexpr):
    """Numbers i, 0 from count on, of a stream of `size` bytes, int32."""
    bit = i * BITS
    at = bit >> 3
    there = i < count
    window = L.load(stream + at, there, 0).to(L.int32) << 16
    if BITS > 1:
        window |= L.load(stream + at + 1, there & (at + 1 < size), 0).to(L.int32) << 8
    if BITS > 9:
        window |= L.load(stream + at + 2, there & (at + 2 < size), 0).to(L.int32)
    return (window >> (24 - BITS - (bit & 7))) & ((1 << BITS) - 1)


@jit
def _number(words, at: constexpr, BITS: constexpr):
    """Number `at` of a row of 32, whose stream is BITS words."""
    word: constexpr = at * BITS // 32
    end: constexpr = at * BITS % 32 + BITS
    if end <= 32:
        number = words[word] >> (32 - end)
    else:
        number = (words[word] << (end - 32)) | (words[word + 1] >> (64 - end))
    return number & ((1 << BITS) - 1)


@jit
def _numbers(words, FIRST: constexpr, STEP: constexpr, BITS: constexpr):
    """Numbers FIRST, FIRST + STEP, .. of rows, [R, 2, 2, ..]; STEP: a power of two."""
    if STEP == 16:
        return L.join(_number(words, FIRST, BITS), _number(words, FIRST + 16, BITS))
    else:
        return L.join(_numbers(words, FIRST, 2 * STEP, BITS), _numbers(words, FIRST + STEP, 2 * STEP, BITS))


@jit
def load_rows(stream, row, count, BITS: constexpr, ROWS: constexpr):
    """Rows of 32 numbers, uint32[ROWS, 32], 0 from row `count` on; stream: int32, its bytes in order; row: int32."""
    return load_rows_at(stream + row * BITS, row < count, BITS, ROWS)


@jit
def load_rows_at(at, there, BITS: constexpr, ROWS: constexpr):
    """Rows of 32 numbers that begin at these addresses, 0 where not `there`; see load_rows()."""
    words = ()
    for k in L.static_range(BITS):
        word = L.load(at + k, there, 0).to(L.uint32, bitcast=True)
        words = words + (permute_bytes(word, word * 0, word * 0 + 0x0123),)  # type: ignore[assignment]
    return L.reshape(_numbers(words, 0, 1, BITS), [ROWS, 32])


@jit
def unpack_rows_kernel(packed, numbers, rows, BITS: constexpr):
    """unpack_kernel for whole rows of 32 numbers; packed: int32."""
    first = L.program_id(0).to(L.int64) * _ROWS
    row = arange(_ROWS, streamed(_ROWS, _WARPS, 1))
    value = load_rows(packed + first * BITS, row, below(rows - first, _ROWS), BITS, _ROWS)
    layout: constexpr = streamed(32 * _ROWS, _WARPS, 128 // numbers.dtype.element_ty.primitive_bitwidth)
    i = arange(32 * _ROWS, layout)
    value = conv(L.reshape(value, [32 * _ROWS]), layout).to(numbers.dtype.element_ty)
    L.store(numbers + first * 32 + i, value, i < below((rows - first) * 32, 32 * _ROWS))


@jit
def columns_of(x, ROWS: constexpr, COUNT: constexpr):
    """The columns of x, [ROWS, COUNT], each [ROWS]."""
    first, second = L.split(L.permute(L.reshape(x, [ROWS, 2, COUNT // 2]), (0, 2, 1)))
    if COUNT == 2:
        return (L.reshape(first, [ROWS]), L.reshape(second, [ROWS]))
    else:
        return columns_of(first, ROWS, COUNT // 2) + columns_of(second, ROWS, COUNT // 2)


@jit
def _put(word, number, end: constexpr, BITS: constexpr):
    """`word` with a number that ends behind its first `end` bits, as far as it is in the word."""
    if end > 0 and end <= 32:
        word |= number << (32 - end)
    elif end > 32 and end < 32 + BITS:
        word |= number >> (end - 32)
    return word


@jit
def _word(numbers, k: constexpr, BITS: constexpr):
    """Word k of the stream of a row of 32 numbers."""
    word = numbers[0] * 0
    for at in L.static_range(32):
        word = _put(word, numbers[at], at * BITS + BITS - 32 * k, BITS)
    return word


@jit
def _words(numbers, FIRST: constexpr, STEP: constexpr, COUNT: constexpr, BITS: constexpr):
    """Words FIRST, FIRST + STEP, .. below COUNT of rows, [R, 2, 2, ..]; those beyond the stream are 0."""
    if STEP == COUNT:
        return _word(numbers, FIRST, BITS)
    else:
        return L.join(
            _words(numbers, FIRST, 2 * STEP, COUNT, BITS), _words(numbers, FIRST + STEP, 2 * STEP, COUNT, BITS)
        )


@jit
def row_words(numbers, ROWS: constexpr, BITS: constexpr):
    """The words of rows of 32 numbers, uint32[ROWS, 32], as a stream; see load_rows(): a tuple of int32[ROWS]."""
    columns = columns_of(numbers, ROWS, 32)
    words = ()
    for k in L.static_range(BITS):
        word = _word(columns, k, BITS)
        words = words + (permute_bytes(word, word * 0, word * 0 + 0x0123).to(L.int32, bitcast=True),)  # type: ignore[assignment]
    return words


@jit
def store_packed_rows(numbers, packed, first, rows, BITS: constexpr, PADDED: constexpr):
    """Store rows `first` .. of 32 numbers, a tuple of uint32[_ROWS], below row `rows`, as a stream; see
    pack_rows_kernel.
    """
    words = _words(numbers, 0, 1, PADDED, BITS)
    layout: constexpr = grid(PADDED, _WARPS)
    words = conv(L.reshape(words, [_ROWS, PADDED]), layout)
    row = L.expand_dims(arange(_ROWS, of_rows(layout)), 1)
    k = L.expand_dims(arange(PADDED, of_columns(layout)), 0)
    zero = words * 0
    value = permute_bytes(words, zero, zero + 0x0123).to(L.int32, bitcast=True)
    L.store(packed + first * BITS + row * BITS + k, value, (row < below(rows - first, _ROWS)) & (k < BITS))


@jit
def pack_rows_kernel(numbers, packed, rows, BITS: constexpr, PADDED: constexpr):
    """pack_kernel for whole rows of 32 numbers; packed: int32, BITS a row. PADDED: a power of two from BITS on."""
    first = L.program_id(0).to(L.int64) * _ROWS
    i = arange(32 * _ROWS, streamed(32 * _ROWS, _WARPS, 32))
    x = L.load(numbers + first * 32 + i, i < below((rows - first) * 32, 32 * _ROWS), 0).to(L.uint32)
    store_packed_rows(columns_of(L.reshape(x, [_ROWS, 32]), _ROWS, 32), packed, first, rows, BITS, PADDED)


@jit
def below(count, most):
    """min(count, most) as int32, so that comparisons take one instruction."""
    return L.minimum(count, most).to(L.int32)


@jit
def unpack_kernel(packed, numbers, count, BITS: constexpr):
    """numbers[count] of a stream of code_bytes(count, BITS) bytes; uint8 or uint16."""
    first = L.program_id(0).to(L.int64) * _TILE
    i = arange(_TILE, streamed(_TILE, _WARPS, 4))
    rest = below(count - first, _TILE)
    size = (rest * BITS + 7) // 8
    value = load_number(packed + first // 8 * BITS, i, rest, size, BITS)
    L.store(numbers + first + i, value.to(numbers.dtype.element_ty), i < rest)


@jit
def pack_kernel(numbers, packed, count, size, BITS: constexpr, WORD: constexpr):
    """packed[size] = numbers[count] as a stream, WORD bytes of it a thread at a time; the last ones are filled with 0.

    packed: uint8, or int32 for WORD = 4, which then has size // 4 words and big-endian bytes in them.
    """
    base = L.program_id(0).to(L.int64) * _TILE
    start = base * (8 * WORD) // BITS  # the number that the program's first bit is of
    numbers += start
    there = below(count - start, 8 * WORD * _TILE + 64)
    i = arange(_TILE, streamed(_TILE, _WARPS, 1))
    bit = (base * (8 * WORD) - start * BITS).to(L.int32) + i * (8 * WORD)
    first = bit // BITS
    room = 8 * WORD - BITS + bit - first * BITS  # bits behind the first number, below 32
    value = (i * 0).to(L.uint32)
    for k in L.static_range((8 * WORD + BITS - 2) // BITS + 1):
        number = L.load(numbers + first + k, first + k < there, 0).to(L.uint32)
        left = room - k * BITS
        if (k + 1) * BITS <= 8 * WORD:
            value |= number << left.to(L.uint32)
        else:
            moved = number << L.maximum(left, 0).to(L.uint32)
            value |= L.where(left >= 0, moved, number >> L.maximum(-left, 0).to(L.uint32))
    if WORD == 4:
        zero = value * 0
        value = permute_bytes(value, zero, zero + 0x0123)
    L.store(packed + base + i, value.to(packed.dtype.element_ty), i < below(size - base, _TILE))
