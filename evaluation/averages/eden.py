"""EDEN (Vargaftik et al., ICML 2022), n ranks in one process; with one bit it is DRIVE (NeurIPS 2021).

Each rank rotates its gradient with signs of its own, and the average is rotated anew for the way down. Rotated
coordinates are rounded to Lloyd-Max points c, and the scale |x|^2 / <y, c> makes the average over rotations exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from reference import block_sizes
from torch import Tensor

from averages.averaging import hadamard
from averages.lloyd_max import lloyd_max

ROTATION_BLOCK = 8192
#: Tensors are padded to a multiple.
_PADDED = 64


@dataclass(frozen=True)
class Eden:
    """up_bits, down_bits: of a code. seed: of signs."""

    up_bits: int
    down_bits: int
    seed: int = 0


class EdenAverager:
    """Averages float32[ranks, coordinates]; blocks of up to ROTATION_BLOCK end at tensors, one after the other."""

    def __init__(self, config: Eden, tensors: Sequence[slice]) -> None:
        self._config, self._tensors = config, tensors
        self._random = torch.Generator().manual_seed(config.seed)
        sizes = [block_sizes(span.stop - span.start, ROTATION_BLOCK) for span in tensors]
        self._sizes = sizes
        codes = sum(map(sum, sizes)) * (config.up_bits + config.down_bits) / 8
        #: Codes, and a float32 for each block, up and down.
        self.bytes_both_ways = codes + 2.0 * 4 * sum(map(len, sizes))

    def average(self, gradients: Tensor) -> Tensor:
        mean = torch.stack([self._received(own, self._config.up_bits) for own in gradients]).mean(dim=0)
        return self._received(mean, self._config.down_bits)

    def _received(self, x: Tensor, bits: int) -> Tensor:
        """What is decoded of float32[coordinates]."""
        out = torch.zeros_like(x)
        for span, sizes in zip(self._tensors, self._sizes, strict=True):
            own = torch.nn.functional.pad(x[span], (0, -(span.stop - span.start) % _PADDED))
            full = sizes.count(ROTATION_BLOCK)
            parts = [own[: full * ROTATION_BLOCK].view(full, ROTATION_BLOCK)] if full else []
            parts += [part[None] for part in torch.split(own[full * ROTATION_BLOCK :], sizes[full:])]
            out[span] = torch.cat([self._rotated(part, bits).flatten() for part in parts])[: span.stop - span.start]
        return out

    def _rotated(self, blocks: Tensor, bits: int) -> Tensor:
        """Rotate float32[blocks, size], round and rotate back."""
        signs = torch.randint(2, blocks.shape, generator=self._random).mul_(2).sub_(1)
        norms = blocks.norm(dim=1, keepdim=True)
        z = hadamard(blocks * signs) / norms.clamp_min(1e-30)  # the norm is y's root mean square
        table = lloyd_max(bits)
        c = torch.from_numpy(table.points).float()[torch.bucketize(z, torch.from_numpy(table.edges).float())]
        dots = (z * c).sum(dim=1, keepdim=True)
        return hadamard(c * (norms / dots.clamp_min(1e-30))) * signs
