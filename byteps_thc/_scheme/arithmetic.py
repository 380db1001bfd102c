"""The version of the arithmetic: ranks with different versions get wrong averages, so every route compares it.

The version is the number ARITHMETIC of wire.toml (8 bits), for people, and a digest (16 bits) of small known averages,
keys and shards, which also finds a changed bit whose author forgot to bump the number.
"""

import functools
import hashlib
from typing import Any

import numpy as np

from byteps_thc._base.arrays import F32, everybody
from byteps_thc._base.wire.layout import ARITHMETIC
from byteps_thc._native import _core
from byteps_thc._scheme import shares
from byteps_thc._scheme.adding.compressor import Compressor
from byteps_thc._scheme.adding.server_codes import ResolvedCodes, ServerCodes
from byteps_thc._scheme.adding.tables import LookupTable
from byteps_thc._scheme.block_plan import BLOCK, WHOLE, BlockPlan, RowSpan, block_ends

DIGEST_BITS = 16
_COORDINATES = 300  # two rotation blocks and a part of one
_WORKERS = 2
# Fixed: chosen tables are compared separately. The threshold of p = 1/4 needs no logarithm, whose last bit differs
# between C libraries.
_TABLE = LookupTable(bits=4, granularity=17, p=0.25, values=(*range(8), *range(10, 18)), cost=0.0)
_ROWS = BlockPlan((), (RowSpan(7, 260, 20),))
# Blocks of 64, 64, 64, 8 and 40 coordinates, between others that are in none.
_BLOCKS = _core.BlockTable(shares.block_words([(0, 200), (220, 260)]), first=1 << 20)
_BITS, _DOWN_BITS = 3, 4


@functools.cache
def arithmetic_version() -> int:
    """Return the version of the arithmetic in this process, 24 bits, computed once."""
    return ARITHMETIC << DIGEST_BITS | int.from_bytes(golden_digest()[: DIGEST_BITS // 8])


def version_name(version: int) -> str:
    return f"{version >> DIGEST_BITS} (digest 0x{version & (1 << DIGEST_BITS) - 1:04x})"


def golden_digest() -> bytes:
    """Return a hash of codes, sums and averages of a small fixed gradient, and of keys and shards of a larger one."""
    digest = hashlib.blake2b(digest_size=16)
    stratified = ServerCodes(rotation_block=128)
    independent = ServerCodes(rotation_block=128, rounding="independent", error_feedback=True, seed=1 << 40)
    for codes, plan in ((stratified, WHOLE), (independent, WHOLE), (independent, _ROWS)):
        _encode_and_decode(ResolvedCodes(codes, _WORKERS, _TABLE, value_bits=8), plan, digest)
    _average_among_ranks(digest)
    _share_out(digest)
    return digest.digest()


def _encode_and_decode(resolved: ResolvedCodes, plan: BlockPlan, digest: hashlib.blake2b) -> None:
    gradient = _gradient()
    sums = np.zeros(0, np.uint8)
    for worker in range(_WORKERS):
        compressor = Compressor(resolved, workers=_WORKERS, worker=worker, threads=1)
        partition = compressor.partition("arithmetic", _COORDINATES, plan=plan)
        compressor.measure(partition, gradient, round=3)
        # Fixed norms: the last bit of a measured norm may differ between workers.
        codes = compressor.encode(partition, np.full(len(partition.norms), 30, np.float32))
        digest.update(codes.tobytes())
        if worker == 0:
            sums = np.zeros(partition.padded, np.uint8)
        _core.lookup_sum(codes, _TABLE.array, sums, bits=_TABLE.bits, add=worker > 0)
    average = np.zeros(_COORDINATES, np.float32)
    compressor.decode(partition, sums, everybody(_WORKERS), average)
    digest.update(average.tobytes())


def _average_among_ranks(digest: hashlib.blake2b) -> None:
    blocks = len(_BLOCKS)
    codes = np.zeros((_WORKERS, _core.code_bytes(BLOCK * blocks, _BITS)), np.uint8)
    own_codes = np.zeros((1, _core.code_bytes(BLOCK * blocks, _DOWN_BITS)), np.uint8)
    scales = np.zeros((_WORKERS + 1, _core.scale_bytes(blocks)), np.uint8)
    key: dict[str, Any] = {"blocks": _BLOCKS, "seed": 1 << 40, "tensor": 5, "round": 3}
    for rank in range(_WORKERS):
        gradient = _gradient() * np.float32(1 + rank)
        _core.encode_blocks(gradient, codes[rank], scales[rank], bits=_BITS, rank=rank, ranks=_WORKERS, **key)
    up = codes, scales[:_WORKERS]
    _core.recode_blocks(*up, own_codes[0], scales[-1], bits=_BITS, down_bits=_DOWN_BITS, **key)
    average = np.zeros(_COORDINATES, np.float32)
    for sent in (codes, own_codes, scales):
        digest.update(sent.tobytes())
    _core.decode_blocks(*up, average, bits=_BITS, **key)
    digest.update(average.tobytes())
    _core.decode_blocks(own_codes, scales[_WORKERS:], average, bits=_DOWN_BITS, down=True, **key)
    digest.update(average.tobytes())


def _share_out(digest: hashlib.blake2b) -> None:
    """Update the digest by the key and blocks of a gradient's parameters, one of which has rows."""
    tensors, rows, columns = ((0, 900), (1000, 40_000), (40_000, 70_001)), (RowSpan(1000, 40_000, 300),), 70_100
    words = shares.block_words(tensors, rows)
    key = shares.random_key(shares.partition_name("arithmetic", slice(0, columns)))
    gaps = [(columns * row + 70_001 - 500 * row, columns * (row + 1)) for row in range(3)]
    for ranks in (1, 2, 3):
        tables = [shares.without_gaps(words, gaps, row * columns) for row in range(ranks)]
        for span, own in shares.cut_blocks(tables, columns, 3):
            for shards in (shares.share_out(key, own[0], 100, ranks), shares.row_shards(key, own, 100)):
                digest.update(f"{span} {shares.shards_digest(shards)}".encode())
    spans = [shares.even_spans(columns << 4, 1 << 18, 8192, servers) for servers in (1, 3)]
    digest.update(repr((spans, BlockPlan(block_ends(tensors), rows).within(spans[0][0]))).encode())


def _gradient() -> F32:
    return ((np.arange(_COORDINATES) * 37 % 101 - 50) / 16).astype(np.float32)
