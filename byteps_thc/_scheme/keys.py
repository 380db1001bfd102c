"""Keys of the random bits, in device memory."""

import numpy as np
import torch
from torch import Tensor

from byteps_thc._scheme.rounding import Rounding

ROUND = 3


def device_key(device: torch.device, *, seed: int, tensor: int, rounding: Rounding, round: int = 0) -> Tensor:
    """Return a key, int32[8]: seed (lower, upper half), tensor, round, domain, phase, 0 (encode's first entry), 0.

    seed: 64 bits. tensor, round: 32 bits. rounding: of the worker; signs need none.
    """
    words = [seed & 0xFFFFFFFF, seed >> 32, tensor, round, *rounding, 0, 0]
    return torch.from_numpy(np.array(words, np.uint32).view(np.int32)).to(device)


def set_round(key: Tensor, round: int) -> None:
    key[ROUND].fill_(signed_word(round))


def signed_word(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number
