"""Norms that become their maximum over the ranks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from byteps_thc.arrays import F32


def write_ordered(norms: F32, out: npt.NDArray[np.int32]) -> None:
    """Write norms as integers that are ordered like them, with NaN above infinity.

    Without the sign that a NaN may have: it would be less than all others.
    """
    np.bitwise_and(norms.view(np.int32), 0x7FFFFFFF, out=out)


class MaxNorms:
    """Norms as integers for Communicator.max_(), so that NaN reaches all ranks.

    bits: what a communicator takes, int32. values: the same memory, float32.
    """

    def __init__(self, size: int) -> None:
        self.bits = torch.zeros(size, dtype=torch.int32)
        self.values: F32 = self.bits.numpy().view(np.float32)

    def begin(self, norms: F32) -> None:
        """Write this rank's norms."""
        write_ordered(norms, self.bits.numpy())
