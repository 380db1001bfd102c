"""EDEN (Vargaftik et al., ICML 2022), n ranks in one process; with one bit it is DRIVE (NeurIPS 2021).

Each rank rotates its gradient with signs of its own, and the average is rotated anew for the way down. Rotated
coordinates are rounded to Lloyd-Max points c, and the scale |x|^2 / <y, c> makes the average over rotations exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from averages.averaging import hadamard, runs_of_blocks
from averages.cases import ROTATION_BLOCK
from averages.lloyd_max import lloyd_max
from byteps_thc._base.wire.layout import MIN_ROTATION_BLOCK


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
        runs = [run for span in tensors for run in runs_of_blocks(_padded(span), ROTATION_BLOCK)]
        codes = sum(count * size for _, count, size in runs) * (config.up_bits + config.down_bits) / 8
        #: Codes, and a float32 for each block, up and down.
        self.bytes_both_ways = codes + 2.0 * 4 * sum(count for _, count, _ in runs)

    def average(self, gradients: Tensor) -> Tensor:
        mean = torch.stack([self._received(own, self._config.up_bits) for own in gradients]).mean(dim=0)
        return self._received(mean, self._config.down_bits)

    def _received(self, x: Tensor, bits: int) -> Tensor:
        """float32[coordinates] as a receiver decodes it."""
        out = torch.zeros_like(x)
        for span in self._tensors:
            coordinates = span.stop - span.start
            own = torch.nn.functional.pad(x[span], (0, _padded(span) - coordinates))
            runs = runs_of_blocks(len(own), ROTATION_BLOCK)
            parts = [own[start : start + count * size].view(count, size) for start, count, size in runs]
            out[span] = torch.cat([self._rotated(part, bits).flatten() for part in parts])[:coordinates]
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


def _padded(span: slice) -> int:
    size: int = span.stop - span.start
    return -(-size // MIN_ROTATION_BLOCK) * MIN_ROTATION_BLOCK
