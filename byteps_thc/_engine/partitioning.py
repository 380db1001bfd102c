"""Where gradients are cut into partitions, on every route."""

from __future__ import annotations

import itertools

#: Partitions do not get shorter so that each server has one: a round of norms takes longer than 64 packets of codes.
_SHORTEST_SHARE = 1 << 16


def even_spans(size: int, largest: int, multiple: int, servers: int = 1) -> list[slice]:
    """Cut 0 .. size into as few spans as possible, all about as long: a short last one would cost as much to send.

    largest: length of a span at most. Spans but the last are multiples of `multiple`, or of `largest` if that is less.
    servers: spans go to these in turns, so their number is a multiple of it unless that makes them too short.
    """
    multiple = min(multiple, largest)
    multiples = -(-size // multiple)
    count = -(-multiples // (largest // multiple))
    count = max(count, min(-(-count // servers) * servers, size // _SHORTEST_SHARE, multiples))
    cuts = [multiple * (multiples * i // count) for i in range(count)] + [size]
    return [slice(*cut) for cut in itertools.pairwise(cuts)]
