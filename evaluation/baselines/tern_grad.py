"""TernGrad: each coordinate becomes -1, 0 or 1.

Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning" (NIPS 2017), for each
parameter:
    g = clamp(g, -c sigma, c sigma);    s = max |g|;    t = sign(g) with probability |g| / s, else 0
    decoded: s * t, which is unbiased but for the clamp
"""

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from baselines.codec import Codec, EncodeContext, VectorSpec, join_payload, split_payload
from baselines.config import CodecConfig
from baselines.memory import Memory, NoMemory
from baselines.packing import pack, packed_bytes, unpack

_BITS = 2


class TernGrad(CodecConfig):
    """Ternary gradients: 2 bits for each coordinate and a scaler for each parameter."""

    clip: float | None = Field(default=2.5, gt=0)
    """c: clamp each parameter's gradient to this many standard deviations; None: do not clamp"""
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    """selects the rounding"""

    @override
    def codec(self) -> Codec:
        return TernaryCodec(self.clip, self.seed)

    @override
    def memory(self, workers: int) -> Memory:
        """Return nothing to keep: rounding is unbiased, and the paper has no error feedback."""
        return NoMemory()


class TernaryCodec(Codec):
    """Payload: float32 scaler of each parameter, then 2-bit codes t + 1."""

    def __init__(self, clip: float | None, seed: int) -> None:
        self._clip = clip
        self._seed = seed

    @override
    def payload_bytes(self, spec: VectorSpec, step: int) -> int:
        """Return 4 bytes for each parameter and 2 bits for each coordinate."""
        return 4 * len(spec.sizes) + packed_bytes(spec.size, _BITS)

    @override
    def encode(self, vector: Tensor, spec: VectorSpec, context: EncodeContext) -> Tensor:
        """Round at random. A parameter that is not finite has a scaler that is not."""
        uniform = context.uniform(self._seed, spec, vector.device)
        scalers = vector.new_empty(len(spec.sizes))
        ternary = torch.empty_like(vector)
        for number, part in enumerate(spec.slices):
            gradient = self._clamped(vector[part])
            magnitude = gradient.abs()
            scalers[number] = magnitude.max()
            ternary[part] = gradient.sign() * (uniform[part] * scalers[number] < magnitude)
        return join_payload(scalers, pack((ternary + 1).to(torch.uint8), _BITS))

    @override
    def decode(self, payload: Tensor, spec: VectorSpec, step: int) -> Tensor:
        """Return s * t."""
        scalers, codes = split_payload(payload, len(spec.sizes))
        vector = unpack(codes, _BITS, spec.size).to(torch.float32).sub_(1)
        for scaler, part in zip(scalers, spec.slices, strict=True):
            vector[part] *= scaler
        return vector

    def _clamped(self, gradient: Tensor) -> Tensor:
        if self._clip is None:
            return gradient
        bound = self._clip * gradient.std(correction=0)
        return gradient.clamp(-bound, bound)
