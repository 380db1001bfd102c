"""Lookup tables in device memory."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from byteps_thc._scheme.adding.tables import LookupTable

#: Largest granularity whose values fit a byte of an entry.
_NARROW = 255


@dataclass(frozen=True)
class DeviceTable:
    """entries: int64[g + 1], the interval of each cell of the grid. values: float32[2^bits].

    The lower half of an entry is 2^16 / gap as float32. The upper half has, from its lowest byte, the lower table
    value, the code and the upper table value as bfloat16; for g > 255 only the code.
    """

    bits: int
    granularity: int
    threshold: float
    entries: Tensor
    values: Tensor

    @classmethod
    def of(cls, table: LookupTable, device: torch.device) -> "DeviceTable":
        values = table.array.astype(np.float32)
        used = table.array[: table.levels]
        code = np.repeat(np.arange(table.levels - 1), np.diff(used))
        code = np.append(code, table.levels - 2)  # g itself ends the last interval
        gap_inverse = np.float32(2**16) / np.diff(values[: table.levels])
        words = code.astype(np.uint64) << np.uint64(8)
        if table.granularity <= _NARROW:
            upper = values[code + 1].view(np.uint32).astype(np.uint64)  # the lower half of such a float is zero
            words |= table.array[code].astype(np.uint64) | upper
        entries = gap_inverse[code].view(np.uint32).astype(np.uint64) | words << np.uint64(32)
        tensors = (torch.from_numpy(array).to(device) for array in (entries.view(np.int64), values))
        return cls(table.bits, table.granularity, float(np.float32(table.threshold)), *tensors)

    @property
    def wide(self) -> bool:
        return self.granularity > _NARROW
