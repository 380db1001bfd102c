"""Norms that become their maximum over the ranks."""

from __future__ import annotations

import numpy as np
import torch

from byteps_thc.arrays import F32


class MaxNorms:
    """Norms as integers for Lane.max_(): they order like them, and NaN above infinity, so that NaN reaches all ranks.

    bits: what a lane takes, int32. values: the same memory, float32.
    """

    def __init__(self, *shape: int) -> None:
        self.bits = torch.zeros(shape, dtype=torch.int32)
        self.values: F32 = self.bits.numpy().view(np.float32)

    def begin(self, norms: F32) -> None:
        """Write this rank's norms, without the sign that a NaN may have: it would be less than all others."""
        np.bitwise_and(norms.view(np.int32), 0x7FFFFFFF, out=self.bits.numpy())
