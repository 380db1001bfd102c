"""Rounds of ranks that decode each other's codes, by the kernels, in one process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from byteps_thc._base.arrays import F32, U8
from byteps_thc._native import _core
from byteps_thc._scheme.shares import block_words


@dataclass(frozen=True)
class Key:
    """The input of random signs, equal on all workers.

    seed: 64 bits
    tensor, round: 32 bits each
    """

    seed: int
    tensor: int
    round: int


class Sent(NamedTuple):
    """Packed codes and scales, uint8."""

    codes: U8
    scales: U8


def keywords(key: Key) -> dict[str, int]:
    """Return the kernels' arguments of a key."""
    return {"seed": key.seed, "tensor": key.tensor, "round": key.round}


def blocks_of(*tensors: int | tuple[int, int]) -> _core.BlockTable:
    """Return the blocks of tensors: (start, stop), or a size."""
    return _core.BlockTable(block_words((0, one) if isinstance(one, int) else one for one in tensors))


def empty(blocks: _core.BlockTable, bits: int, ranks: int = 1) -> Sent:
    """Return messages of `ranks` ranks, full of rubbish: rows of codes and scales that lie apart."""
    sizes = _core.code_bytes(64 * len(blocks), bits), _core.scale_bytes(len(blocks))
    return Sent(*(np.full((ranks, size + 5), 0xA5, np.uint8)[:, :size] for size in sizes))


def encode(
    gradient: npt.NDArray[Any], blocks: _core.BlockTable, bits: int, key: Key, *, rank: int = 0, ranks: int = 1,
    kernels: Any = _core, down: bool = False, pool: _core.ThreadPool | None = None,
) -> Sent:  # fmt: skip
    """Return a rank's message. down: the message of an owner."""
    [codes], [scales] = empty(blocks, bits)
    kernels.encode_blocks(
        gradient, codes, scales, blocks=blocks, bits=bits, rank=rank, ranks=ranks, down=down, pool=pool,
        **keywords(key),
    )  # fmt: skip
    return Sent(codes, scales)


def gathered(sent: Sequence[Sent], blocks: _core.BlockTable, bits: int) -> Sent:
    """Return the messages of all ranks as they lie in a receive buffer."""
    rows = empty(blocks, bits, len(sent))
    for rank, one in enumerate(sent):
        rows.codes[rank], rows.scales[rank] = one
    return rows


def decode(
    sent: Sequence[Sent], blocks: _core.BlockTable, bits: int, key: Key, out: npt.NDArray[Any], *,
    kernels: Any = _core, down: bool = False, pool: _core.ThreadPool | None = None,
) -> npt.NDArray[Any]:  # fmt: skip
    """Write the average of all messages into out, and return out."""
    rows = gathered(sent, blocks, bits)
    kernels.decode_blocks(*rows, out, blocks=blocks, bits=bits, down=down, pool=pool, **keywords(key))
    return out


def recode(
    sent: Sequence[Sent], blocks: _core.BlockTable, bits: int, key: Key, down_bits: int, *, kernels: Any = _core,
    pool: _core.ThreadPool | None = None,
) -> Sent:  # fmt: skip
    """Return an owner's message from all ranks' messages."""
    [codes], [scales] = empty(blocks, down_bits)
    rows = gathered(sent, blocks, bits)
    kernels.recode_blocks(
        *rows, codes, scales, blocks=blocks, bits=bits, down_bits=down_bits, pool=pool, **keywords(key)
    )
    return Sent(codes, scales)


def average(
    gradients: Sequence[F32], bits: int, down_bits: int | None, key: Key, blocks: _core.BlockTable | None = None,
    kernels: Any = _core,
) -> F32:  # fmt: skip
    """Return the average after a round. down_bits: None where owners keep it. blocks: default: of one tensor."""
    blocks, ranks = blocks or blocks_of(len(gradients[0])), len(gradients)
    sent = [
        encode(gradient, blocks, bits, key, rank=rank, ranks=ranks, kernels=kernels)
        for rank, gradient in enumerate(gradients)
    ]
    out = np.zeros(len(gradients[0]), np.float32)
    if down_bits is None:
        return decode(sent, blocks, bits, key, out, kernels=kernels)
    again = recode(sent, blocks, bits, key, down_bits, kernels=kernels)
    return decode([again], blocks, down_bits, key, out, kernels=kernels, down=True)
