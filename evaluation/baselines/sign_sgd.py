"""SignSGD: each coordinate becomes its sign.

majority: Bernstein et al., "signSGD" (ICML 2018), with majority vote: decoded is sign(sum of signs), 0 for a tie.
scaled:   Karimireddy et al., "Error feedback fixes SignSGD" (ICML 2019), for each parameter of d coordinates:
    p = g + e;    decoded: (|p|_1 / d) sign(p);    e = p - decoded
The sign of 0 is +.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from baselines.codec import Codec, EncodeContext, VectorSpec, join_payload, split_payload
from baselines.config import CodecConfig
from baselines.memory import ErrorFeedback, Memory, NoMemory
from baselines.packing import pack, packed_bytes, unpack


class SignSgd(CodecConfig):
    """Signs of the gradient: 1 bit for each coordinate, and a scale for each parameter or one for all."""

    variant: Literal["scaled", "majority"] = "scaled"
    """scaled: signs times the parameter's mean magnitude, averaged, with error feedback; majority: the sign of most
    workers, -1, 0 or 1 for gradients of any size, so the learning rate has to be chosen for it"""

    @override
    def codec(self) -> Codec:
        return ScaledSignCodec() if self.variant == "scaled" else MajorityCodec()

    @override
    def memory(self, workers: int) -> Memory:
        """Return empty residuals, or nothing to keep for the majority vote."""
        return ErrorFeedback() if self.variant == "scaled" else NoMemory()


class ScaledSignCodec(Codec):
    """Payload: float32 mean magnitude of each parameter, then a bit for each coordinate, set unless it is negative."""

    @override
    def payload_bytes(self, spec: VectorSpec, step: int) -> int:
        """Return 4 bytes for each parameter and a bit for each coordinate."""
        return 4 * len(spec.sizes) + packed_bytes(spec.size, 1)

    @override
    def encode(self, vector: Tensor, spec: VectorSpec, context: EncodeContext) -> Tensor:
        """Take signs and means. A parameter that is not finite has a mean that is not."""
        scales = torch.stack([vector[part].abs().mean() for part in spec.slices])
        return join_payload(scales, _pack_signs(vector))

    @override
    def decode(self, payload: Tensor, spec: VectorSpec, step: int) -> Tensor:
        """Return the signs, each parameter's times its scale."""
        scales, bits = split_payload(payload, len(spec.sizes))
        vector = _unpack_signs(bits, spec.size)
        for scale, part in zip(scales, spec.slices, strict=True):
            vector[part] *= scale
        return vector


class MajorityCodec(Codec):
    """Payload: float32 1, or NaN for a vector that is not finite, then a bit for each coordinate."""

    @override
    def payload_bytes(self, spec: VectorSpec, step: int) -> int:
        """Return 4 bytes and a bit for each coordinate."""
        return 4 + packed_bytes(spec.size, 1)

    @override
    def encode(self, vector: Tensor, spec: VectorSpec, context: EncodeContext) -> Tensor:
        """Take the signs."""
        scale = torch.where(vector.isfinite().all(), 1.0, torch.nan).view(1)
        return join_payload(scale, _pack_signs(vector))

    @override
    def decode(self, payload: Tensor, spec: VectorSpec, step: int) -> Tensor:
        """Return the signs."""
        scale, bits = split_payload(payload, 1)
        return _unpack_signs(bits, spec.size).mul_(scale)

    @override
    def combine(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the majority's signs: the sign of the sum of the workers' signs."""
        # Sums of signs are integers, so clamping them gives their signs; and NaN stays NaN.
        return torch.stack(list(vectors)).sum(dim=0).clamp_(-1.0, 1.0)


def _pack_signs(vector: Tensor) -> Tensor:
    return pack((vector >= 0).to(torch.uint8), 1)


def _unpack_signs(packed: Tensor, count: int) -> Tensor:
    return unpack(packed, 1, count).to(torch.float32).mul_(2).sub_(1)
