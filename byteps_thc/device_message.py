"""What travels beside codes in device memory: norms with their fingerprint, and what is not compressed.

The kernels of byteps_thc.gpu take it from, and write it to, these tensors. Needs no Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Words of a message that do not travel: the gradient's number and its round.
OWN_WORDS = 2
#: Words before the norms.
HEADER_WORDS = OWN_WORDS + 2
_LARGEST_WORD = (1 << 31) - 1
_NAN = 0x7FC00000


@dataclass(frozen=True)
class Message:
    """Words of a gradient, and what has become known of all gradients.

    words: int32[4 + B]: number and round of the gradient, two words that say which it is, and its norms without signs;
    from the third on they travel, and come back as the maxima over the ranks. state: int32[4], the header of the last
    gradient, or of the first one that was not the same on all ranks: whose two words do not add up to 2^31 - 1. differ:
    bool[], whether there was one.
    """

    words: Tensor
    state: Tensor
    differ: Tensor

    def write(self, header: tuple[int, int, int, int]) -> None:
        """Write the header. The kernels do it with the norms (kernels.Begin); here it is for what has none."""
        for word, value in zip(self.words[:HEADER_WORDS].unbind(), header, strict=True):
            word.fill_(value)  # as numbers: a copy from host memory would wait

    def take(self, max_norms: Tensor) -> None:
        """Note what has arrived, and write the maxima, float32[B]: NaN unless all ranks agree, then and before.

        The kernels do it where there are ranges of the norms (encode.ranges_kernel).
        """
        torch.where(self.differ, self.state, self.words[:HEADER_WORDS], out=self.state)
        total = self.state[OWN_WORDS:].sum(dtype=torch.int64)
        torch.ne(total, _LARGEST_WORD, out=self.differ)
        nan = torch.full_like(self.state[:1], _NAN)
        torch.where(self.differ, nan, self.words[HEADER_WORDS:], out=max_norms.view(torch.int32))


@dataclass(frozen=True)
class Beside:
    """What of a gradient of rows x columns is not compressed.

    columns: int64[n], which travel exactly, in all rows; None: none. spans: the same, (start, stop). holes: all that is
    not compressed, padding included, (start, stop) in all rows one behind the other. All are ascending and disjoint.
    """

    columns: Tensor | None
    spans: Sequence[tuple[int, int]]
    holes: Sequence[tuple[int, int]]
