"""The kernels as plain functions on tensors; shapes and dtypes as in _core.pyi. Nothing here waits for the device.

Sizes: n coordinates, P padded, B rotation blocks. Tensors are contiguous, of any alignment, all on one device: a GPU,
or the CPU with TRITON_INTERPRET=1. `key`: keys.device_key. `tiles`: of several partitions, or of one whose blocks end
in places; then `key`, keep and clamped have a row or number for each, and arrays are those of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from byteps_thc.compressor import LARGEST_NORM, SCALE_GROUP
from byteps_thc.device_message import HEADER_WORDS, Exact, Message
from byteps_thc.errors import ConfigurationError
from byteps_thc.gpu import lookup_sum as sums_of
from byteps_thc.gpu import packing
from byteps_thc.gpu import requantize as requantizing
from byteps_thc.gpu.decode import decode_kernel
from byteps_thc.gpu.encode import RANGES_WARPS, encode_kernel, ranges_kernel
from byteps_thc.gpu.frontend import PLAIN
from byteps_thc.gpu.launch import Launcher
from byteps_thc.gpu.layouts import MAX_TILE, WARP_COORDINATES
from byteps_thc.gpu.norms import EXACT_COORDINATES, norms_kernel
from byteps_thc.gpu.tiles import ALL_TILES, FULL_TILES, ODD_TILES, TileTable, tile_of
from byteps_thc.keys import signed_word
from byteps_thc.tables.device import DeviceTable
from byteps_thc.wire.layout import MIN_ROTATION_BLOCK

#: Registers a thread, so that two tiles of 8192 share a multiprocessor.
_REGISTERS = 128


def register_limit() -> dict[str, Any]:
    """Option of the kernels that would take more registers than occupancy allows."""
    return {} if PLAIN else {"maxnreg": _REGISTERS}


#: The CPU rounds after every operation.
_EXACT: dict[str, Any] = {"enable_fp_fusion": False}
_norms = Launcher(norms_kernel, **_EXACT)
_ranges = Launcher(ranges_kernel, **_EXACT)
_encode = Launcher(encode_kernel, **_EXACT, **register_limit())
_decode = Launcher(decode_kernel, **_EXACT, **register_limit())
_lookup_words = Launcher(sums_of.lookup_words_kernel, **_EXACT)
_lookup_sum = Launcher(sums_of.lookup_sum_kernel, **_EXACT)
_lookup_pack_words = Launcher(sums_of.lookup_pack_words_kernel, **_EXACT)
_lookup_pack = Launcher(sums_of.lookup_pack_kernel, **_EXACT)
_requantize = Launcher(requantizing.requantize_kernel, **_EXACT, **register_limit())
_keep_loss = Launcher(requantizing.keep_loss_kernel, **_EXACT, **register_limit())
_pack_rows = Launcher(packing.pack_rows_kernel, **_EXACT)
_pack = Launcher(packing.pack_kernel, **_EXACT)
_unpack_rows = Launcher(packing.unpack_rows_kernel, **_EXACT)
_unpack = Launcher(packing.unpack_kernel, **_EXACT)


@dataclass(frozen=True)
class Begin:
    """What begins a round: its number, 32 bits, for all `keys`, and the header of a message."""

    round: int
    keys: Tensor
    message: Message
    header: tuple[int, int, int, int]


def block_norms(
    gradient: Tensor,
    residual: Tensor | None,
    norms: Tensor,
    *,
    rotation_block: int,
    tiles: TileTable | None = None,
    begin: Begin | None = None,
    send: bool = False,
    exact: Exact | None = None,
) -> None:
    """norms[B] = Euclidean norms of the blocks of gradient[n] + residual[n].

    begin: written first. send: norms are also put in its message. exact: taken out of the gradient.
    """
    carried = gradient if residual is None else residual
    sent, words, keys, header = norms, norms, norms, (0, 0, 0, 0, 0)
    if begin is not None:
        number, _, largest, complement = begin.header
        words, keys = begin.message.words, begin.keys
        header = (keys.shape[0], number, signed_word(begin.round), largest, complement)
        sent = words[HEADER_WORDS:]
    arguments = (gradient, carried, norms, sent, words, keys, *header)
    constants = (residual is not None, send, begin is not None)
    _for_tiles(_norms, gradient.numel(), rotation_block, tiles, arguments, constants, (exact, None))


def clamp_ranges(
    norms: Tensor,
    max_norms: Tensor,
    ranges: Tensor,
    keep: Tensor,
    clamped: Tensor,
    energy: Tensor,
    *,
    table: DeviceTable,
    largest_norm: float = LARGEST_NORM,
    starts: Tensor | None = None,
    message: Message | None = None,
) -> None:
    """What encode needs to know of a partition: ranges[B, 4], keep, clamped, energy [1], see encode.ranges_kernel.

    starts: int32[P + 1], of the blocks of P partitions, which then have a keep, clamped and energy each. message: that
    was received, of which max_norms are written first.
    """
    scalars = (table.threshold, float(table.granularity), largest_norm, norms.numel())
    if message is None:
        received = (keep, keep, keep)
    else:
        received = (message.words, message.state, message.differ.view(torch.uint8))
    several = (keep if starts is None else starts, *received)
    arguments = (norms, max_norms, ranges, keep, clamped, energy, *several, *scalars)
    _ranges(keep.numel(), arguments, (starts is not None, message is not None), RANGES_WARPS.value)


def encode(
    gradient: Tensor,
    residual: Tensor | None,
    ranges: Tensor,
    codes: Tensor,
    keep: Tensor,
    clamped: Tensor,
    *,
    rotation_block: int,
    table: DeviceTable,
    key: Tensor,
    keep_error: bool,
    known: Tensor | None = None,
    tiles: TileTable | None = None,
) -> None:
    """codes[code_bytes(P, bits)] of gradient[n] + residual[n]; with keep_error and where keep[0] != 0 the new residual.

    ranges, keep: of clamp_ranges. clamped: int64[1], to which the clamped coordinates are added.
    known: float32[2, 16], KnownErrors.own: what decode() takes back is not kept.
    """
    carried = gradient if residual is None else residual
    errors = carried if known is None else known
    _for_tiles(
        _encode,
        gradient.numel(),
        rotation_block,
        tiles,
        (gradient, carried, codes, ranges, table.entries, table.values, key, keep, clamped, errors),
        (table.bits, table.wide, residual is not None, keep_error, known is not None),
    )


def decode(
    aggregate: Tensor,
    contributions: Tensor,
    max_norms: Tensor,
    out: Tensor,
    *,
    codes_per_chunk: int,
    rotation_block: int,
    granularity: int,
    threshold: float,
    key: Tensor,
    value_bits: int,
    sum_bits: int | None = None,
    known: Tensor | None = None,
    workers: int = 0,
    tiles: TileTable | None = None,
    exact: Exact | None = None,
    differ: Tensor | None = None,
) -> None:
    """out[n] = average gradient of aggregate[P], uint8 or uint16 as value_bits says.

    sum_bits: the aggregate is a stream of sums of so many bits, uint8[code_bytes(P, sum_bits)]. known: float32
    [2, 16], KnownErrors.sum, subtracted from the sums of chunks with `workers` contributions. exact: sums over
    `workers`, whose averages are put in their places of `out`, NaN where `differ`, bool[].
    """
    scalars = (threshold, float(granularity), 0.0, codes_per_chunk, workers, 0)
    words = sum_bits is not None and aggregate.data_ptr() % 4 == 0
    if words:
        aggregate = aggregate.view(torch.int32)
    _for_tiles(
        _decode,
        out.numel(),
        rotation_block,
        tiles,
        (aggregate, contributions, max_norms, out, key, max_norms if known is None else known, *scalars),
        (sum_bits or 0, words, value_bits == 8, contributions.numel() > 1, 0, known is not None),
        (exact, out if differ is None else differ.view(torch.uint8)),
    )


def decode_requantized(
    shards: Tensor,
    max_norms: Tensor,
    out: Tensor,
    *,
    table: DeviceTable,
    shard_codes: int,
    most: int,
    rotation_block: int,
    threshold: float,
    key: Tensor,
    workers: int = 0,
    tiles: TileTable | None = None,
    exact: Exact | None = None,
    differ: Tensor | None = None,
) -> None:
    """out[n] = average gradient of what all workers have made of sums with requantize().

    shards: uint8[workers, bytes], 4-byte aligned: shard_codes codes of `table` each, and their scales. most: see
    requantize(). workers, exact, differ, others: see decode().
    """
    words, stride = shards.view(torch.int32), shards.shape[1] // 4
    sent = shards.view(-1)[shard_codes * table.bits // 8 :].view(torch.uint16)
    scalars = (threshold, float(table.granularity), float(most), shard_codes // 32, workers, stride)
    _for_tiles(
        _decode,
        out.numel(),
        rotation_block,
        tiles,
        (words, sent, max_norms, out, key, table.values, *scalars),
        (table.bits, True, False, False, SCALE_GROUP // 32, False),
        (exact, out if differ is None else differ.view(torch.uint8)),
    )


def lookup_sum(codes: Tensor, sums: Tensor, *, table: DeviceTable) -> None:
    """sums[count], uint8 or uint16 = sums over the shards of table values; codes: uint8[shards, code_bytes(count)]."""
    shards, stride = codes.shape
    count = sums.numel()
    aligned = codes.data_ptr() % 4 == 0 and sums.data_ptr() % 4 == 0 and stride % 4 == 0 and count % 8 == 0
    if table.packed is not None and aligned:
        words = count // 8
        wide = sums.dtype != torch.uint8
        unrolled = shards if shards <= sums_of.UNROLLED else sums_of.UNROLLED + 1
        arguments = (codes.view(torch.int32), table.packed, sums.view(torch.int32), words, stride // 4, shards)
        _lookup_words(-(-words // sums_of.WORDS), arguments, (unrolled, wide), sums_of.WARPS)
        return
    arguments = (codes, table.integers, sums, count, stride, shards)
    _lookup_sum(-(-count // sums_of.TILE), arguments, (table.bits,), sums_of.WARPS)


def lookup_pack(codes: Tensor, packed: Tensor, *, table: DeviceTable, sum_bits: int, wide: bool) -> None:
    """packed = pack(lookup_sum(codes), sum_bits), of a multiple of 32 sums; wide: they have 16 bits before, not 8.

    codes: uint8[shards, bytes]; rows of it and packed are 4-byte aligned.
    """
    shards, stride = codes.shape
    rows = packed.numel() * 8 // (32 * sum_bits)
    padded = 1 << (sum_bits - 1).bit_length()
    of_words, words = (codes.view(torch.int32), packed.view(torch.int32)), (rows, stride // 4, shards)
    programs = -(-rows // packing.ROWS)
    if table.packed is not None:
        arguments = (of_words[0], table.packed, of_words[1], *words)
        _lookup_pack_words(programs, arguments, (sum_bits, padded, wide), packing.WARPS)
    else:
        arguments = (of_words[0], table.integers, of_words[1], *words)
        _lookup_pack(programs, arguments, (table.bits, sum_bits, padded), packing.WARPS)


def requantize(
    sums: Tensor,
    codes: Tensor,
    scales: Tensor,
    *,
    table: DeviceTable,
    key: Tensor,
    places: Tensor,
    most: int,
    own_key: Tensor | None = None,
    known: Tensor | None = None,
    workers: int = 0,
    received: Tensor | None = None,
    received_table: DeviceTable | None = None,
) -> None:
    """codes[code_bytes(count, bits)] and scales[groups], uint16, of sums[count], uint8 or uint16, a multiple of 64.

    table: of those codes. key: of the partitions, with the domain of requantizing. places: of requantize.places_of().
    most: granularity * workers of the sums. known, workers: of decode(); own_key: its keys. received: uint8[shards,
    bytes], 4-byte aligned, codes whose values in received_table are summed first. See requantize.requantize_kernel.
    """
    keys = (key, key if own_key is None else own_key, table.values if known is None else known)
    if received is None or received_table is None:
        looked_up, bits = (codes, table.integers, 0, 0), 0
    else:
        shards, stride = received.shape
        words = received.view(torch.int32)
        looked_up, bits = (words, received_table.integers, stride // 4, shards), received_table.bits
    scalars = (workers, float(most), float(table.granularity))
    arguments = (sums, codes, scales, table.entries, table.values, *keys, places, *looked_up, *scalars)
    if programs := places.shape[0]:
        constants = (table.bits, table.wide, known is not None, bits)
        _requantize(programs, arguments, constants, requantizing.TILE // WARP_COORDINATES)


def keep_loss(
    sums: Tensor,
    codes: Tensor,
    scales: Tensor,
    max_norms: Tensor,
    residual: Tensor,
    keep: Tensor,
    *,
    table: DeviceTable,
    key: Tensor,
    first: int,
    most: int,
    granularity: int,
    threshold: float,
    rotation_block: int,
    tiles: TileTable,
    known: Tensor | None = None,
    workers: int = 0,
) -> None:
    """residual += what requantize() lost of sums[count], those of codes `first` .. of all, where keep != 0.

    sums, codes, scales, table, most, known, workers: of requantize(). granularity: of the sums. max_norms, key,
    threshold: of decode(). tiles: at least those that have some of these codes. See requantize.keep_loss_kernel.
    """
    scalars = (threshold, float(granularity), float(table.granularity), float(most), workers, first, sums.numel())
    errors = max_norms if known is None else known
    arguments = (sums, codes, scales, table.values, max_norms, residual, keep, key, errors, *scalars)
    tile = tile_of(rotation_block)
    constants = (rotation_block.bit_length() - 1, tile, table.bits, known is not None, tiles.kind)
    place = (tiles.words, tiles.holes, tiles.stride)
    _keep_loss(len(tiles.words), (*arguments, *place), constants, tile // WARP_COORDINATES)


def pack(numbers: Tensor, packed: Tensor, *, bits: int) -> None:
    """packed[code_bytes(count, bits)] = numbers[count], uint8 or uint16, as a stream, most significant bit first."""
    rows = numbers.numel() // 32 if packed.data_ptr() % 4 == 0 else 0
    if rows:
        words = packed[: rows * 4 * bits].view(torch.int32)
        constants = (bits, 1 << (bits - 1).bit_length())
        _pack_rows(-(-rows // packing.ROWS), (numbers, words, rows), constants, packing.WARPS)
        packed, numbers = packed[rows * 4 * bits :], numbers[rows * 32 :]
    if not numbers.numel():
        return
    word = 4 if packed.numel() % 4 == 0 and packed.data_ptr() % 4 == 0 else 1
    size = packed.numel() // word
    arguments = (numbers, packed.view(torch.int32) if word == 4 else packed, numbers.numel(), size)
    _pack(-(-size // packing.TILE), arguments, (bits, word), packing.WARPS)


def unpack(packed: Tensor, numbers: Tensor, *, bits: int) -> None:
    """Inverse of pack."""
    count = numbers.numel()
    rows = count // 32 if packed.data_ptr() % 4 == 0 else 0
    if rows:
        words = packed[: rows * 4 * bits].view(torch.int32)
        _unpack_rows(-(-rows // packing.ROWS), (words, numbers, rows), (bits,), packing.WARPS)
        packed, numbers, count = packed[rows * 4 * bits :], numbers[rows * 32 :], count % 32
    if not count:
        return
    _unpack(-(-count // packing.TILE), (packed, numbers, count), (bits,), packing.WARPS)


def check_rotation_block(rotation_block: int) -> None:
    """Raise ConfigurationError for blocks that do not fit a tile."""
    if rotation_block > MAX_TILE:
        raise ConfigurationError(
            f"rotation_block {rotation_block} is too large for the GPU kernels: use at most {MAX_TILE}"
        )


def _for_tiles(
    launch: Launcher,
    coordinates: int,
    rotation_block: int,
    tiles: TileTable | None,
    arguments: tuple[Any, ...],
    constants: tuple[Any, ...],
    beside: tuple[Exact | None, Tensor | None] | None = None,
) -> None:
    """Launch a kernel for all tiles. coordinates: of the partition without `tiles`.

    beside: of kernels that take what travels exactly, and perhaps a flag.
    """
    check_rotation_block(rotation_block)
    tile = tile_of(rotation_block)
    if tiles is None:
        programs, full = -(-coordinates // tile), coordinates // tile
        kind = FULL_TILES if full == programs else ALL_TILES if full else ODD_TILES
        padded = -(-coordinates // MIN_ROTATION_BLOCK) * MIN_ROTATION_BLOCK
        place = (arguments[0], arguments[0], 0, coordinates, padded)
    else:
        programs, kind = tiles.words.shape[0], tiles.kind
        place = (tiles.words, tiles.holes, tiles.stride, 0, tiles.codes)
    of_tiles = programs
    if beside is not None:
        exact, flag = beside
        values, index = (arguments[0],) * 2 if exact is None else (exact.values, exact.index)
        count = 0 if exact is None else index.numel()
        programs += -(-count // EXACT_COORDINATES)
        arguments = (*arguments, values, index, count, *([] if flag is None else [flag]), of_tiles)
        constants = (*constants, exact is not None)
    constants = (rotation_block.bit_length() - 1, tile, *constants, kind, tiles is not None)
    if programs:
        launch(programs, (*arguments, *place), constants, tile // WARP_COORDINATES)
