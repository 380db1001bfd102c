"""TopK: only the largest coordinates travel.

Aji and Heafield, "Sparse communication for distributed gradient descent" (EMNLP 2017):
    p = g + e;    send the k coordinates of p with the largest |p|;    e = p - sent
"""

from pydantic import Field
from typing_extensions import override

from baselines.codec import Codec
from baselines.config import CodecConfig
from baselines.memory import ErrorFeedback, Memory, NoMemory
from baselines.sparse import SparseCodec


class TopK(CodecConfig):
    """Send the largest coordinates of each parameter, 8 bytes each: value and index."""

    ratio: float = Field(default=0.01, gt=0, le=1)
    """share of each parameter's coordinates that is sent, at least one of them"""
    error_feedback: bool = True
    """add the unsent part to the next gradient"""

    @override
    def codec(self) -> Codec:
        return SparseCodec(lambda _step: self.ratio)

    @override
    def memory(self, workers: int) -> Memory:
        """Return empty residuals, or nothing to keep without error feedback."""
        return ErrorFeedback() if self.error_feedback else NoMemory()
