"""torch's PowerSGD hook in its first step: one power iteration from random directions (Vogels et al., NeurIPS 2019).

As the hook does by default, tensors for which low rank saves less than half travel as they are.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from byteps_thc.tools.compare.gradients import Gradients

#: The hook's min_compression_rate.
_LEAST_RATE = 2


@dataclass(frozen=True)
class LowRank:
    """average: in the order of the names. numbers: float32 of a worker for all-reduces. compute_s: of its processor."""

    average: Tensor
    numbers: int
    compute_s: float


def power_sgd(gradients: Gradients, rank: int, seed: int = 0) -> LowRank:
    """Average gradients in that rank."""
    random = torch.Generator().manual_seed(seed)
    parts, numbers, seconds = [], 0, 0.0
    for name, first in gradients[0].items():
        own = [gradient[name] for gradient in gradients]
        matrices = [value.reshape(len(value), -1) if value.dim() > 1 else value.reshape(1, -1) for value in own]
        rows, columns = matrices[0].shape
        low = min(rows, columns, rank)
        if (rows + columns) * low * _LEAST_RATE >= rows * columns:
            numbers += first.numel()
            parts.append(torch.stack(own).mean(dim=0).flatten())
            continue
        numbers += (rows + columns) * low
        q = torch.linalg.qr(torch.randn(columns, low, generator=random, device="cpu")).Q
        start = time.thread_time()
        mine = matrices[0] @ q
        seconds += time.thread_time() - start
        p_sum = mine + sum(matrix @ q for matrix in matrices[1:])
        start = time.thread_time()
        p = torch.linalg.qr(p_sum / len(own)).Q
        mine = matrices[0].T @ p
        seconds += time.thread_time() - start
        q_mean = (mine + sum(matrix.T @ p for matrix in matrices[1:])) / len(own)
        start = time.thread_time()
        product = p @ q_mean.T
        seconds += time.thread_time() - start
        parts.append(product.flatten())
    return LowRank(torch.cat(parts), numbers, seconds)
