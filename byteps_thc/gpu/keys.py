"""Keys of the random bits in device memory, so that CUDA graphs, which freeze scalars, see a new one every round."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: Words of a key: seed (lower, upper half), tensor, round, domain and phase of the rounding bits, two zeros.
KEY_WORDS = 8
#: Where the round is.
ROUND = 3


def device_key(
    device: torch.device, *, seed: int, tensor: int, round: int = 0, domain: int = 1, phase: int = 0
) -> Tensor:
    """Return a key, int32[8].

    seed: 64 bits. tensor, round, domain: 32 bits. phase: 16 bits. The rounding bits of a coordinate are (u + phase) mod
    2^16 with u of Philox domain `domain`: 1 + worker, where every worker rounds on its own. Signs have domain 0.
    Word 6: where encode's entries of the table begin, 0.
    """
    words = [seed & 0xFFFFFFFF, seed >> 32, tensor, round, domain, phase, 0, 0]
    return torch.from_numpy(np.array(words, np.uint32).view(np.int32)).to(device)


def set_round(key: Tensor, round: int | Tensor) -> None:
    """Change the round of a key, in stream order; a tensor, int32[1] on the device, is read then."""
    if isinstance(round, Tensor):
        key[ROUND : ROUND + 1].copy_(round)
    else:
        key[ROUND].fill_(round - (1 << 32) if round >= 1 << 31 else round)
