"""THC encode and decode of one partition in plain torch CPU operations, as one would write them without our kernels.

Same algorithm (rotation in blocks, max-norm clamp, stochastic quantization with a lookup table, 4-bit packing);
torch's own random numbers. Vectorised over blocks, no Python loop over coordinates.
"""

import torch
from torch import Tensor


def hadamard(blocks: Tensor) -> Tensor:
    """Unnormalised fast Walsh-Hadamard transform of the rows of blocks[B, d]."""
    size = blocks.shape[1]
    half = 1
    while half < size:
        pairs = blocks.view(blocks.shape[0], size // (2 * half), 2, half)
        blocks = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), dim=2).flatten(1)
        half *= 2
    return blocks


def encode(gradient: Tensor, signs: Tensor, table: Tensor, threshold: float, block: int) -> tuple[Tensor, Tensor]:
    """gradient[n], signs[n] (+-1), table[16] -> packed codes uint8[n / 2], norms[n / block]."""
    blocks = gradient.view(-1, block)
    norms = torch.linalg.vector_norm(blocks, dim=1)
    rotated = hadamard(blocks * signs.view(-1, block))
    granularity = table[-1]
    limit = (threshold * norms).unsqueeze(1)
    scaled = rotated.clamp(-limit, limit).add_(limit).mul_(granularity / (2 * limit))
    low = torch.bucketize(scaled, table, right=True).sub_(1).clamp_(0, table.numel() - 2)
    lower, upper = table[low], table[low + 1]
    codes = (low + (torch.rand_like(scaled) * (upper - lower) < scaled - lower)).to(torch.uint8).flatten()
    return (codes[0::2] << 4) | codes[1::2], norms


def decode(
    aggregate: Tensor, workers: int, norms: Tensor, signs: Tensor, g: float, threshold: float, block: int
) -> Tensor:
    """aggregate uint8[n] -> average gradient float32[n]."""
    limit = (threshold * norms).unsqueeze(1)
    rotated = aggregate.view(-1, block).to(torch.float32) * (2 * limit / (g * workers)) - limit
    return (hadamard(rotated) / block * signs.view(-1, block)).flatten()
