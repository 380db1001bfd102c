"""Where rotation blocks end in a gradient of several tensors, so that the error of one is not spread over another.

What is rotated together gets the same error per coordinate, however small some of it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from byteps_thc.arrays import U64

#: Coordinates of the smallest tensors with rotation blocks of their own. Smaller ones share theirs with others like
#: them: a norm for each block of 64 would be an eighth of its codes.
OWN_BLOCKS_COORDINATES = 1024
#: Blocks end at its multiples: coordinates whose signs are drawn together.
END_MULTIPLE = 128


def block_ends(tensors: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return where rotation blocks end, besides where partitions do, so that they do not mix tensors of a gradient.

    tensors: (start, stop) of what is compressed, ascending and disjoint; between them are zeros. Ends are multiples of
    128; a group of 128 with coordinates of several tensors is a block of its own. Tensors of less than 1024 coordinates
    that follow each other share blocks, until they are as many.
    """
    neighbours = itertools.pairwise(_with_own_blocks(tensors))
    return tuple(sorted({end for before, behind in neighbours for end in _ends_between(before[1], behind[0])}))


def ends_within(ends: Sequence[int], span: slice) -> tuple[int, ...]:
    """Return the ends of blocks in a partition, counted from its beginning."""
    return tuple(end - span.start for end in ends if span.start < end < span.stop)


def ends_array(ends: Sequence[int]) -> U64 | None:
    """Return ends as kernels take them."""
    return np.array(ends, np.uint64) if ends else None


def _with_own_blocks(tensors: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join small neighbours."""
    small: tuple[int, int] | None = None
    for start, stop in tensors:
        if stop - start >= OWN_BLOCKS_COORDINATES:
            if small is not None:
                yield small
            yield start, stop
            small = None
            continue
        small = (start if small is None else small[0], stop)
        if small[1] - small[0] >= OWN_BLOCKS_COORDINATES:
            yield small
            small = None
    if small is not None:
        yield small


def _ends_between(stop: int, start: int) -> Iterator[int]:
    """Give ends between a tensor that stops and one that starts there."""
    last = start // END_MULTIPLE * END_MULTIPLE
    if last >= stop:
        yield last
    else:
        yield stop // END_MULTIPLE * END_MULTIPLE
        yield -(-start // END_MULTIPLE) * END_MULTIPLE
