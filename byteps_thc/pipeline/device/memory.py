"""Residuals in device memory, and what they were before a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc.arrays import Residual, ResidualDtype, residual_of_tensor, residual_tensor, residual_torch_dtype
from byteps_thc.pipeline.memory import Memory
from byteps_thc.pipeline.rollback import Rollback


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


class DeviceRollback(Rollback[Tensor]):
    """Whether the step is lost is known to the device alone, so apply() selects there, in a pass over what is saved."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(DeviceMemory(device))
        self._lost = torch.zeros(1, dtype=torch.bool, device=device)

    @override
    def begin(self) -> None:
        super().begin()
        self._lost.zero_()

    @override
    def request(self) -> None:
        self._lost.fill_(True)

    @override
    def request_unless(self, fine: Any) -> None:
        """As request(), where fine, a tensor of one element, is zero; nobody waits for it."""
        if self.active:
            self._lost.logical_or_(fine == 0)

    @override
    def apply(self) -> None:
        for key in self._saved:
            residual, copy = self._copies[key]
            torch.where(self._lost, copy, residual, out=residual)
        # A lost step stays lost until begin(): what it saves later, in new buckets, comes back then.
