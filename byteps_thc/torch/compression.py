"""What a DistributedOptimizer does to gradients on their way: the choices of byteps.torch, and THC."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from byteps_thc.torch.settings import ThcCompression


class GradientCompression(Protocol):
    """BytePS's interface: one tensor at a time, nothing kept in between. Classes and instances both do."""

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """Return what travels, and what decompress() needs."""

    def decompress(self, tensor: Tensor, ctx: Any) -> Tensor:
        """Return the tensor as it was, for what arrived."""


class NoneCompressor:
    """Gradients travel as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:  # noqa: ARG004  the interface
        """Return the tensor itself."""
        return tensor


class Fp16Compressor:
    """Floating-point gradients travel, and are added up, as float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor as float16, and the dtype it had."""
        return tensor.half() if tensor.is_floating_point() else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype) -> Tensor:
        """Return the tensor in the dtype it had."""
        return tensor.to(ctx)


class Compression:
    """The compressions to choose from; `none`, `fp16` as in byteps.torch, `thc(...)` makes a ThcCompression."""

    none = NoneCompressor
    fp16 = Fp16Compressor
    thc = ThcCompression
