"""DGC: the largest coordinates of gradients that a worker accumulates with momentum.

Lin et al., "Deep gradient compression" (ICLR 2018): memory.MomentumCorrection has the equations. Selected are exactly
the k largest coordinates, where the paper samples a threshold.
"""

from typing import Annotated

from pydantic import Field
from typing_extensions import override

from baselines.codec import Codec
from baselines.config import CodecConfig
from baselines.memory import Memory, MomentumCorrection
from baselines.sparse import SparseCodec

_Ratio = Annotated[float, Field(gt=0, le=1)]


class Dgc(CodecConfig):
    """Deep gradient compression. Momentum is applied here, so give the optimizer none: SGD(..., momentum=0)."""

    ratio: _Ratio = 0.001
    """share of each parameter's coordinates that is sent, at least one of them"""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """of the optimizer that the training would have without DGC"""
    clip_norm: float | None = Field(default=None, gt=0)
    """clip each parameter's gradient to this Euclidean norm divided by sqrt(workers); None: do not clip"""
    warmup_ratios: tuple[_Ratio, ...] = (0.25, 0.0625, 0.015625, 0.004)
    """ratios of the warm-up, one after the other, as long as they are above `ratio`"""
    warmup_steps_per_ratio: int = Field(default=0, ge=0)
    """steps with each of warmup_ratios (the paper: an epoch); 0: no warm-up"""

    def ratio_at(self, step: int) -> float:
        """Return the share that is sent in that step, counted from 0."""
        if self.warmup_steps_per_ratio == 0:
            return self.ratio
        stage = step // self.warmup_steps_per_ratio
        return max(self.warmup_ratios[stage], self.ratio) if stage < len(self.warmup_ratios) else self.ratio

    @override
    def codec(self) -> Codec:
        return SparseCodec(self.ratio_at)

    @override
    def memory(self, workers: int) -> Memory:
        """Return empty residuals and momenta."""
        return MomentumCorrection(self.momentum, self.clip_norm, workers)
