"""Numbers of 1 to 16 bits as one bit stream, most significant bit first. reference.pack and unpack are the oracles."""

from byteps_thc._scheme.gpu.frontend import L, arange, constexpr, conv, jit, permute_bytes
from byteps_thc._scheme.gpu.layouts import of_columns, of_rows


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
def load_rows(rows, there, BITS: constexpr):
    """Rows of 32 numbers, BITS words of a stream each, int32, 0 where not `there`: words of unpacked()."""
    row = ()
    for k in L.static_range(BITS):
        row = row + (L.load(rows + k, there, 0),)  # type: ignore[assignment]
    return row


@jit
def unpacked(words, ROWS: constexpr, BITS: constexpr):
    """The numbers of rows, uint32[ROWS, 32]. words: BITS times int32[ROWS], the stream as it is in memory."""
    numbers = ()
    for k in L.static_range(BITS):
        word = words[k].to(L.uint32, bitcast=True)
        numbers = numbers + (permute_bytes(word, word * 0, word * 0 + 0x0123),)  # type: ignore[assignment]
    return L.reshape(_numbers(numbers, 0, 1, BITS), [ROWS, 32])


@jit
def store_rows(rows, there, row, layout: constexpr, BITS: constexpr):
    """layout: of [rows, 4], for widths whose words are stored by four."""
    if BITS % 4 == 0:
        word = L.expand_dims(arange(4, of_columns(layout)), 0)
        at = L.expand_dims(conv(rows, of_rows(layout)), 1) + word
        mask = L.expand_dims(conv(there, of_rows(layout)), 1)
        for k in L.static_range(BITS // 4):
            four = L.join(L.join(row[4 * k], row[4 * k + 2]), L.join(row[4 * k + 1], row[4 * k + 3]))
            L.store(at + 4 * k, conv(L.reshape(four, at.shape), layout), mask)
    else:
        for k in L.static_range(BITS):
            L.store(rows + k, row[k], there)


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
    """`word` with the bits inside it of a number that ends behind its first `end` bits."""
    if end > 0 and end <= 32:
        word |= number << (32 - end)
    elif end > 32 and end < 32 + BITS:
        word |= number >> (end - 32)
    return word


@jit
def _word(numbers, k: constexpr, BITS: constexpr):
    word = numbers[0] * 0
    for at in L.static_range(32):
        word = _put(word, numbers[at], at * BITS + BITS - 32 * k, BITS)
    return word


@jit
def row_words(numbers, ROWS: constexpr, BITS: constexpr):
    """The words of rows of 32 numbers, uint32[ROWS, 32], as a stream, see unpacked()."""
    columns = columns_of(numbers, ROWS, 32)
    words = ()
    for k in L.static_range(BITS):
        word = _word(columns, k, BITS)
        words = words + (permute_bytes(word, word * 0, word * 0 + 0x0123).to(L.int32, bitcast=True),)  # type: ignore[assignment]
    return words
