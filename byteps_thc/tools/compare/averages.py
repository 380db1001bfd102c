"""Error and bytes of THC's average, or of one in a floating-point type, for one gradient of each worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from byteps_thc.config import ThcConfig
from byteps_thc.pipeline.ranks.codec import Messages, RankCodec
from byteps_thc.pipeline.ranks.shards import MessageLayout, blocks_of, share_out
from byteps_thc.rank_settings import RankSettings
from byteps_thc.transport.recorder import moved_bytes


@dataclass(frozen=True)
class Average:
    """nmse: |average - estimate|^2 / |average|^2. sent_bits: bits of a coordinate that a rank sends."""

    nmse: float
    sent_bits: float


def average(gradients: Sequence[Tensor], config: ThcConfig | torch.dtype) -> Average:
    """Average among ranks. gradients: one for each rank, float32, 1-D, of the same size, in host memory."""
    if isinstance(config, ThcConfig):
        estimate, sent_bytes = _average_thc(gradients, config)
    else:
        estimate, sent_bytes = _average_dense(gradients, config)
    exact = torch.stack([gradient.double() for gradient in gradients]).mean(dim=0)
    nmse = float((estimate.double() - exact).square().sum() / exact.square().sum())
    return Average(nmse, 8 * sent_bytes / exact.numel())


def _average_thc(gradients: Sequence[Tensor], config: ThcConfig) -> tuple[Tensor, int]:
    ranks, columns = len(gradients), gradients[0].numel()
    settings = RankSettings.of(config, ranks)
    blocks = blocks_of(columns, ranks, settings.config.rotation_block, (), ())
    shards = share_out(0, blocks, (), ranks)
    up, down = (MessageLayout.of(shards, bits) for bits in (settings.bits, settings.down.bits))
    sent, averages = np.zeros((ranks, ranks, up.size_bytes), np.uint8), np.zeros((ranks, down.size_bytes), np.uint8)
    codecs = [RankCodec(settings, rank) for rank in range(ranks)]
    for codec, gradient, own in zip(codecs, gradients, sent, strict=True):
        codec.encode(shards, [gradient.numpy()], Messages.of(own, up), 0)
    for rank, (codec, shard) in enumerate(zip(codecs, shards, strict=True)):
        codec.recode(shard, Messages.of(sent[:, rank], up), Messages.of(averages[rank : rank + 1], down), 0)
    estimate = torch.empty_like(gradients[0])
    codecs[0].decode(shards, Messages.of(averages, down), estimate.numpy(), 0)
    return estimate, moved_bytes((up.size_bytes + down.size_bytes) * ranks, ranks)


def _average_dense(gradients: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, int]:
    total = torch.zeros(gradients[0].shape, dtype=dtype)
    for gradient in gradients:
        total = total + gradient.to(dtype) / len(gradients)
    return total.float(), moved_bytes(2 * total.nbytes, len(gradients))
