"""Where gradients are cut into partitions, on every route."""

from __future__ import annotations

import itertools

from byteps_thc.config import ThcConfig


def partition_spans(key: str, size: int, config: ThcConfig) -> list[tuple[str, slice]]:
    """Return names and spans of the partitions of a gradient `key` of `size` elements."""
    spans = even_spans(size, config.partition_coordinates, config.rotation_block)
    return [(f"{key}[{span.start}:{span.stop}]", span) for span in spans]


def column_spans(rows: int, columns: int, config: ThcConfig) -> list[slice]:
    """Cut the columns of a matrix so that all rows of a span together are about a partition, in rotation blocks."""
    block = config.rotation_block
    return even_spans(columns, max(config.partition_coordinates // rows // block, 1) * block, block)


def even_spans(size: int, largest: int, multiple: int) -> list[slice]:
    """Cut 0 .. size into as few spans as possible, all about as long: a short last one would cost as much to send.

    largest: length of a span at most. Spans but the last are multiples of `multiple`, or of `largest` if that is less.
    """
    multiple = min(multiple, largest)
    multiples = -(-size // multiple)
    count = -(-multiples // (largest // multiple))
    cuts = [multiple * (multiples * i // count) for i in range(count)] + [size]
    return [slice(*cut) for cut in itertools.pairwise(cuts)]
