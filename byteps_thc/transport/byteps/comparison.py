"""Whether all processes of a BytePS training have the same settings."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from byteps_thc.transport.byteps import process
from byteps_thc.transport.byteps.push_pull import push_pull_async_inplace, synchronize

_NAME = "THC.settings"


def different_ranks(settings: object, deadline_s: float | None) -> list[int]:
    """Return the ranks whose settings have another repr() than this process's; called by all processes.

    deadline_s: of synchronize(). Raises DeadlineError.
    """
    digest = np.frombuffer(hashlib.sha256(repr(settings).encode()).digest(), np.int32)
    rows = torch.zeros(process.size(), digest.size, dtype=torch.int32, device="cpu")
    rows.numpy()[process.rank()] = digest
    synchronize(push_pull_async_inplace(rows, average=False, name=_NAME), deadline_s)
    return [rank for rank, row in enumerate(rows.numpy()) if not np.array_equal(row, digest)]
