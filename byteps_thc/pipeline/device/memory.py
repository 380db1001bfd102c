"""Residuals in device memory, and what they were before a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc.arrays import Residual, ResidualDtype, residual_of_tensor, residual_tensor, residual_torch_dtype
from byteps_thc.pipeline.memory import Memory


class DeviceMemory(Memory[Tensor]):
    """Tensors; energy() and to_host() wait for the device."""

    def __init__(self, device: torch.device, dtype: ResidualDtype = "float32") -> None:
        self._device, self._dtype = device, residual_torch_dtype(dtype)

    @override
    def zeros(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=self._dtype, device=self._device)

    @override
    def like(self, array: Tensor) -> Tensor:
        return torch.empty_like(array)

    @override
    def concatenate(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([*parts])

    @override
    def scale(self, array: Tensor, factor: float) -> None:
        array *= float(np.float32(factor))

    @override
    def address(self, array: Tensor) -> int:
        return array.data_ptr()

    @override
    def energy(self, array: Tensor) -> float:
        return float(torch.linalg.vector_norm(array, dtype=torch.float64)) ** 2

    @override
    def to_host(self, parts: Sequence[Tensor]) -> Residual:
        return residual_of_tensor(torch.cat([*parts]))

    @override
    def from_host(self, array: Residual) -> Tensor:
        return residual_tensor(array).to(self._device, self._dtype)
