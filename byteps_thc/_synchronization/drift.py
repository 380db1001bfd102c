"""How far the parameters of ranks are apart, measured without sending the parameters.

Every rank multiplies its parameters by the same random signs and adds them up in a few thousand buckets. The squared
norm of the difference of two ranks' buckets is, on average over the signs, that of the difference of their parameters
(Alon, Matias and Szegedy, STOC 1996; Charikar, Chen and Farach-Colton, ICALP 2002). It takes one pass over the
parameters, and 16 KiB per rank.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: A prime: differences often repeat with a period that is a power of two, and should not fall into the same buckets.
BUCKETS = 4093
_ROWS = 1024  # of BUCKETS elements, which are converted to float32 at a time


def sketch(tensors: Iterable[Tensor], seed: int) -> dict[str, Any]:
    """Return {"norm": of the tensors, "buckets": text}, as plain values; for drift().

    tensors: of floating-point types, any device. seed: of the signs, the same on all ranks.
    """
    random = torch.Generator().manual_seed(seed)
    buckets = torch.zeros(BUCKETS, dtype=torch.float64, device="cpu")
    energy = 0.0
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        rows = math.ceil(flat.numel() / BUCKETS)
        signs = (
            torch.randint(0, 2, (rows,), generator=random, device="cpu").mul_(2).sub_(1).to(flat.device, torch.float32)
        )
        for first in range(0, rows, _ROWS):
            part = flat[first * BUCKETS : (first + _ROWS) * BUCKETS].float()
            energy += float(torch.dot(part, part))
            whole = part.numel() // BUCKETS
            added = signs[first : first + whole] @ part[: whole * BUCKETS].view(whole, BUCKETS)
            buckets += added.cpu()
            rest = part[whole * BUCKETS :]
            if rest.numel():
                buckets[: rest.numel()] += (rest * signs[first + whole]).cpu()
    text = base64.b64encode(buckets.numpy().astype("<f4").tobytes()).decode()
    return {"norm": math.sqrt(energy) if energy >= 0 else math.nan, "buckets": text}


def drift(sketches: list[dict[str, Any]]) -> float:
    """Return the largest distance of a rank's parameters from those of rank 0, relative to their norm.

    sketches: of all ranks. Infinite when parameters are not finite.
    """
    buckets = np.array([np.frombuffer(base64.b64decode(one["buckets"]), "<f4") for one in sketches], np.float64)
    if not np.isfinite(buckets).all():
        return math.inf
    distance = float(np.sqrt(np.square(buckets - buckets[0]).sum(axis=1).max()))
    if distance == 0:
        return 0.0
    norm = float(sketches[0]["norm"])
    return distance / norm if norm > 0 else math.inf
