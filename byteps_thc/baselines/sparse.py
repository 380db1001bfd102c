"""Codec of TopK and DGC: the largest coordinates, and where they are."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from byteps_thc.baselines.codec import Codec, Turn, VectorLayout, join_payload, split_payload

_ENTRY_BYTES = 8  # fp32 value, int32 index


class SparseCodec(Codec):
    """Payload: float32[k] values, int32[k] indices within the vector; k is the same on all workers.

    ratio: share of each parameter's coordinates that is sent in a step (at least one of them). The k largest are
    selected exactly; ties are broken as torch.topk does.
    """

    def __init__(self, ratio: Callable[[int], float]) -> None:
        self._ratio = ratio

    def payload_bytes(self, layout: VectorLayout, step: int) -> int:
        """Return 8 bytes for each coordinate that is sent."""
        return _ENTRY_BYTES * sum(self._counts(layout, step))

    def encode(self, vector: Tensor, layout: VectorLayout, turn: Turn) -> Tensor:
        """Select by magnitude. NaN and infinity are larger than all numbers, so they are sent."""
        magnitude = vector.abs()
        chosen = torch.cat(
            [
                magnitude[part].topk(count, sorted=False).indices + part.start
                for part, count in zip(layout.slices, self._counts(layout, turn.step), strict=True)
            ]
        )
        return join_payload(vector[chosen], chosen.to(torch.int32))

    def decode(self, payload: Tensor, layout: VectorLayout, step: int) -> Tensor:
        """Return the vector with zeros where nothing was sent."""
        values, indices = split_payload(payload, sum(self._counts(layout, step)))
        vector = values.new_zeros(layout.size)
        vector[indices.clone().view(torch.int32).long()] = values
        return vector

    def _counts(self, layout: VectorLayout, step: int) -> list[int]:
        ratio = self._ratio(step)
        return [max(1, math.floor(ratio * parameter.size + 0.5)) for parameter in layout.parameters]
