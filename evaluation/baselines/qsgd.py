"""QSGD: stochastic rounding to evenly spaced levels.

Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding" (NIPS 2017), for each bucket
of consecutive coordinates, with s = 2^(bits - 1) - 1 levels on each side of zero:
    x = s |g| / norm;    l = floor(x) + (1 with probability x - floor(x));    decoded: norm * sign(g) * l / s
Codes have a fixed length; the paper's Elias codes are not used.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from baselines.codec import Codec, EncodeContext, VectorSpec, join_payload, split_payload
from baselines.config import CodecConfig
from baselines.memory import Memory, NoMemory
from baselines.packing import pack, packed_bytes, unpack


class Qsgd(CodecConfig):
    """Quantized SGD: codes of `bits` bits and a norm for each bucket."""

    bits: Literal[2, 4, 8] = 4
    """of a code, sign included"""
    bucket_coordinates: int = Field(default=512, ge=1, le=1 << 20)
    """coordinates with a norm of their own"""
    norm: Literal["max", "l2"] = "max"
    """max: largest magnitude of the bucket (the paper's experiments); l2: Euclidean norm (its theorems)"""
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    """selects the rounding"""

    @override
    def codec(self) -> Codec:
        return QsgdCodec(self)

    @override
    def memory(self, workers: int) -> Memory:
        """Return nothing to keep: rounding is unbiased, and the paper has no error feedback."""
        return NoMemory()


class QsgdCodec(Codec):
    """Payload: float32 norm of each bucket, then codes s + sign(g) l."""

    def __init__(self, config: Qsgd) -> None:
        self._config = config
        self._levels = (1 << (config.bits - 1)) - 1

    @override
    def payload_bytes(self, spec: VectorSpec, step: int) -> int:
        """Return 4 bytes for each bucket and `bits` bits for each coordinate."""
        return 4 * self._buckets(spec.size) + packed_bytes(spec.size, self._config.bits)

    @override
    def encode(self, vector: Tensor, spec: VectorSpec, context: EncodeContext) -> Tensor:
        """Round at random. A bucket that is not finite has a norm that is not."""
        buckets = self._as_buckets(vector)
        order = 2 if self._config.norm == "l2" else torch.inf
        norms = torch.linalg.vector_norm(buckets, ord=order, dim=1)
        # A bucket of zeros has level 0, and so has one whose norm is NaN: its decoded values are NaN in any case.
        share = torch.where(norms[:, None] > 0, buckets.abs() / norms[:, None], 0.0).nan_to_num_(0.0)
        x = share.mul_(self._levels)
        floor = x.floor()
        uniform = self._as_buckets(context.uniform(self._config.seed, spec, vector.device))
        level = floor + (uniform < x - floor)
        codes = (buckets.sign().nan_to_num_(0.0) * level + self._levels).to(torch.uint8)
        return join_payload(norms, pack(codes.view(-1)[: spec.size], self._config.bits))

    @override
    def decode(self, payload: Tensor, spec: VectorSpec, step: int) -> Tensor:
        """Return norm * sign * l / s."""
        norms, codes = split_payload(payload, self._buckets(spec.size))
        signed = unpack(codes, self._config.bits, spec.size).to(torch.float32).sub_(self._levels)
        return (self._as_buckets(signed) * (norms[:, None] / self._levels)).view(-1)[: spec.size]

    def _buckets(self, coordinates: int) -> int:
        return -(-coordinates // self._config.bucket_coordinates)

    def _as_buckets(self, vector: Tensor) -> Tensor:
        """Return [buckets, bucket_coordinates], the last one filled up with zeros."""
        width = self._config.bucket_coordinates
        padding = self._buckets(vector.numel()) * width - vector.numel()
        return torch.nn.functional.pad(vector, (0, padding)).view(-1, width)
