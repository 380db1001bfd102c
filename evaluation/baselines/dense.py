"""No compression, or a narrower floating-point type: gradients that an all-reduce can add."""

import torch
from typing_extensions import override

from byteps_thc._base.settings import Settings


class DenseConfig(Settings):
    """Settings of a scheme whose gradients are summed in one dtype."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype on the wire."""
        return torch.float32


class NoCompression(DenseConfig):
    """Gradients in fp32."""


class Bf16(DenseConfig):
    """Brain floating point: 8 significant bits, the range of fp32."""

    @property
    @override
    def dtype(self) -> torch.dtype:
        return torch.bfloat16
