"""Codes of 1, 2, 4 or 8 bits in bytes, with torch operations only, so that they run on any device."""

import torch
from torch import Tensor


def packed_bytes(count: int, bits: int) -> int:
    """Return the bytes that `count` codes of `bits` bits take."""
    return -(-count * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes; return uint8[packed_bytes(len(codes), bits)].

    codes: uint8, 1-D, each below 2^bits. The first code is in the lowest bits of the first byte.
    """
    per_byte = 8 // bits
    size = packed_bytes(codes.numel(), bits)
    padding = size * per_byte - codes.numel()
    if padding:
        codes = torch.cat([codes, codes.new_zeros(padding)])
    columns = codes.view(size, per_byte)
    packed = columns[:, 0].clone()
    for position in range(1, per_byte):
        packed |= columns[:, position] << (position * bits)
    return packed


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the first `count` codes of `packed` as uint8[count]."""
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    codes = packed.new_empty(packed.numel(), per_byte)
    for position in range(per_byte):
        codes[:, position] = (packed >> (position * bits)) & mask
    return codes.view(-1)[:count]
