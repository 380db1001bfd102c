"""Codec of TopK and DGC: the largest coordinates, and their indices."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from baselines.codec import Codec, EncodeContext, VectorSpec, join_payload, split_payload

_ENTRY_BYTES = 8  # fp32 value, int32 index


class SparseCodec(Codec):
    """Payload: float32[k] values, int32[k] indices within the vector; k is the same on all workers.

    ratio: share of each parameter's coordinates that is sent in a step (at least one coordinate). The k largest are
    selected exactly; ties are broken as torch.topk does.
    """

    def __init__(self, ratio: Callable[[int], float]) -> None:
        self._ratio = ratio

    @override
    def payload_bytes(self, spec: VectorSpec, step: int) -> int:
        """Return 8 bytes for each coordinate that is sent."""
        return _ENTRY_BYTES * sum(self._counts(spec, step))

    @override
    def encode(self, vector: Tensor, spec: VectorSpec, context: EncodeContext) -> Tensor:
        """Select by magnitude. NaN and infinity are larger than all numbers, so they are sent."""
        magnitude = vector.abs()
        chosen = torch.cat(
            [
                magnitude[part].topk(count, sorted=False).indices + part.start
                for part, count in zip(spec.slices, self._counts(spec, context.step), strict=True)
            ]
        )
        return join_payload(vector[chosen], chosen.to(torch.int32))

    @override
    def decode(self, payload: Tensor, spec: VectorSpec, step: int) -> Tensor:
        """Return the vector with zeros where nothing was sent."""
        values, indices = split_payload(payload, sum(self._counts(spec, step)))
        vector = values.new_zeros(spec.size)
        vector[indices.clone().view(torch.int32).long()] = values
        return vector

    def _counts(self, spec: VectorSpec, step: int) -> list[int]:
        ratio = self._ratio(step)
        return [max(1, math.floor(ratio * size + 0.5)) for size in spec.sizes]
