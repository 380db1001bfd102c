"""No compression, or a narrower floating-point type: gradients that an all-reduce can add."""

from __future__ import annotations

import torch
from typing_extensions import override

from byteps_thc.baselines.config import BaselineConfig


class DenseConfig(BaselineConfig):
    """Settings of a scheme whose gradients are summed in one dtype."""

    @property
    def dtype(self) -> torch.dtype | None:
        """What travels; None: the gradients' own dtype."""
        return None


class NoCompression(DenseConfig):
    """Gradients as they are, fp32 as a rule; the same average as DDP without a hook."""


class Fp16(DenseConfig):
    """Half precision: 11 significant bits up to 65504; larger gradients overflow, and a GradScaler skips the step."""

    @property
    @override
    def dtype(self) -> torch.dtype | None:
        return torch.float16


class Bf16(DenseConfig):
    """Brain floating point: 8 significant bits, the range of fp32."""

    @property
    @override
    def dtype(self) -> torch.dtype | None:
        return torch.bfloat16
