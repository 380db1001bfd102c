"""The kernels as plain functions on tensors; shapes and dtypes as in _core.pyi. Nothing here waits for the device.

Sizes: n coordinates, P padded, B rotation blocks. Tensors are contiguous, of any alignment, all on one device: a GPU,
or the CPU with TRITON_INTERPRET=1. `key`: keys.device_key. `tiles`: of the partition.
"""

from typing import Any

import torch
from torch import Tensor

from byteps_thc._scheme.adding.compressor import LARGEST_NORM
from byteps_thc._scheme.adding.gpu.decode import decode_kernel
from byteps_thc._scheme.adding.gpu.encode import RANGES_WARPS, encode_kernel, ranges_kernel
from byteps_thc._scheme.adding.gpu.norms import norms_kernel
from byteps_thc._scheme.adding.gpu.tiles import TileTable, tile_of
from byteps_thc._scheme.adding.tables.device import DeviceTable
from byteps_thc._scheme.gpu.launch import Launcher, register_limit
from byteps_thc._scheme.gpu.layouts import WARP_COORDINATES

#: The CPU rounds after every operation.
_EXACT: dict[str, Any] = {"enable_fp_fusion": False}
_norms = Launcher(norms_kernel, **_EXACT)
_ranges = Launcher(ranges_kernel, **_EXACT)
_encode = Launcher(encode_kernel, **_EXACT, **register_limit())
_decode = Launcher(decode_kernel, **_EXACT, **register_limit())


def block_norms(gradient: Tensor, residual: Tensor | None, norms: Tensor, *, tiles: TileTable) -> None:
    carried = gradient if residual is None else residual
    _for_tiles(_norms, tiles, (gradient, carried, norms), (residual is not None,))


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
) -> None:
    """Write encode's parameters of a partition: ranges[B, 4], keep, clamped, energy [1], as encode.ranges_kernel."""
    scalars = (table.threshold, float(table.granularity), largest_norm, norms.numel())
    _ranges(1, (norms, max_norms, ranges, keep, clamped, energy, *scalars), (), RANGES_WARPS.value)


def encode(
    gradient: Tensor,
    residual: Tensor | None,
    ranges: Tensor,
    codes: Tensor,
    keep: Tensor,
    clamped: Tensor,
    *,
    table: DeviceTable,
    key: Tensor,
    keep_error: bool,
    tiles: TileTable,
) -> None:
    """codes[code_bytes(P, bits)] of gradient[n] + residual[n]; with keep_error and where keep[0] != 0 the new residual.

    ranges, keep: of clamp_ranges. clamped: int64[1], to which the clamped coordinates are added.
    """
    carried = gradient if residual is None else residual
    arguments = gradient, carried, codes, ranges, table.entries, table.values, key, keep, clamped
    _for_tiles(_encode, tiles, arguments, (table.bits, table.wide, residual is not None, keep_error))


def decode(
    aggregate: Tensor,
    contributions: Tensor,
    max_norms: Tensor,
    out: Tensor,
    *,
    codes_per_chunk: int,
    granularity: int,
    threshold: float,
    key: Tensor,
    tiles: TileTable,
) -> None:
    """out[n] = average gradient of aggregate[P], uint8 or uint16."""
    arguments = aggregate, contributions, max_norms, out, key, threshold, float(granularity), codes_per_chunk
    _for_tiles(_decode, tiles, arguments, (aggregate.dtype == torch.uint8, contributions.numel() > 1))


def _for_tiles(launch: Launcher, tiles: TileTable, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
    tile, programs = tile_of(tiles.rotation_block), len(tiles.words)
    constants = (tiles.rotation_block.bit_length() - 1, tile, *constants, tiles.kind)
    if programs:
        launch(programs, (*arguments, tiles.words), constants, tile // WARP_COORDINATES)
