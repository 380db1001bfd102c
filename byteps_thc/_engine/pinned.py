"""Host memory that a GPU reads and writes while its threads and the host's go on: pinned, not pageable."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from byteps_thc._scheme.arrays import U8, HostZeros


def pinned_zeros(device: torch.device) -> HostZeros:
    """Return what makes host arrays of zeros for copies to and from a device; np.zeros where that is the host."""
    return _pinned_zeros if device.type == "cuda" else np.zeros


def _pinned_zeros(size: int, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    dtype = np.dtype(dtype)
    # The array keeps the tensor, which has the memory.
    memory: U8 = torch.zeros(size * dtype.itemsize, dtype=torch.uint8, pin_memory=True, device="cpu").numpy()
    return memory.view(dtype)
