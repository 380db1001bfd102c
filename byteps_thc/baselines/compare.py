"""Error and size of all schemes for one gradient, in one process: the table to look at before a training run.

for row in compare(gradients, {"THC": ThcConfig(), "TopK 1%": TopK(ratio=0.01)}):
    print(row)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from byteps_thc.baselines.codec import EncodeContext, VectorSpec
from byteps_thc.baselines.config import CodecConfig
from byteps_thc.baselines.dense import DenseConfig
from byteps_thc.config import ThcConfig
from byteps_thc.errors import InputError
from byteps_thc.pipeline.ranks.codec import Messages, RankCodec
from byteps_thc.pipeline.ranks.shards import MessageLayout, blocks_of, share_out
from byteps_thc.rank_settings import RankSettings
from byteps_thc.transport.recorder import moved_bytes


@dataclass(frozen=True)
class Comparison:
    """One scheme.

    nmse: |average - estimate|^2 / |average|^2, for the average over the workers, in a first step: error feedback and
    momentum have nothing to add yet. THC is that among ranks. up_bits: bits per coordinate that a worker
    sends to an aggregator. sent_bits: bits per coordinate that a rank sends when ranks aggregate themselves
    (all-reduce, all-gather; for THC all-to-all and all-gather).
    """

    scheme: str
    nmse: float
    up_bits: float
    sent_bits: float

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.scheme:<16} NMSE {self.nmse:9.3g}   up {self.up_bits:6.3f}   sent {self.sent_bits:6.3f} bits"


def compare(
    gradients: Sequence[Tensor], schemes: Mapping[str, ThcConfig | DenseConfig | CodecConfig]
) -> list[Comparison]:
    """Average `gradients` with each scheme.

    gradients: one for each worker, float32, 1-D, of the same size, on the CPU; one parameter to the schemes. schemes:
    by the name that the result has. Raises InputError for other gradients, ConfigurationError when a
    scheme cannot work for that many workers.
    """
    if len({gradient.shape for gradient in gradients}) != 1 or gradients[0].dim() != 1 or not gradients[0].numel():
        raise InputError("gradients must be 1-D, of the same size, and at least one")
    average = torch.stack([gradient.double() for gradient in gradients]).mean(dim=0)
    rows = []
    for name, config in schemes.items():
        estimate, up_bytes, sent_bytes = _average(gradients, config)
        nmse = float((estimate.double() - average).square().sum() / average.square().sum())
        bits = 8 / average.numel()
        rows.append(Comparison(name, nmse, up_bytes * bits, sent_bytes * bits))
    return rows


def _average(gradients: Sequence[Tensor], config: ThcConfig | DenseConfig | CodecConfig) -> tuple[Tensor, int, int]:
    """Return the estimate, the bytes that a worker sends to an aggregator, and those of a rank among ranks."""
    if isinstance(config, ThcConfig):
        return _average_thc(gradients, config)
    if isinstance(config, CodecConfig):
        return _average_codec(gradients, config)
    return _average_dense(gradients, config)


def _average_thc(gradients: Sequence[Tensor], config: ThcConfig) -> tuple[Tensor, int, int]:
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
    return estimate, up.size_bytes * ranks, moved_bytes((up.size_bytes + down.size_bytes) * ranks, ranks)


def _average_codec(gradients: Sequence[Tensor], config: CodecConfig) -> tuple[Tensor, int, int]:
    spec, codec = VectorSpec.of("gradient", {"gradient": gradients[0].numel()}), config.codec()
    payloads = [
        codec.encode(gradient, spec, EncodeContext(worker=worker, round=0, step=0))
        for worker, gradient in enumerate(gradients)
    ]
    estimate = codec.combine([codec.decode(payload, spec, 0) for payload in payloads])
    up_bytes = payloads[0].numel()
    return estimate, up_bytes, moved_bytes(up_bytes * len(gradients), len(gradients))


def _average_dense(gradients: Sequence[Tensor], config: DenseConfig) -> tuple[Tensor, int, int]:
    workers = len(gradients)
    narrow = [gradient.to(config.dtype or gradient.dtype) / workers for gradient in gradients]
    total = narrow[0]
    for gradient in narrow[1:]:
        total = total + gradient
    up_bytes = total.numel() * total.element_size()
    return total.float(), up_bytes, moved_bytes(2 * up_bytes, workers)
