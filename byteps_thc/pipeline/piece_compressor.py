"""What pieces need of a compressor: Compressor in host memory, StagedCompressor on a device."""

from __future__ import annotations

from typing import Any, Protocol

from byteps_thc.arrays import F32, U8, U16
from byteps_thc.config import ResolvedConfig, ThcConfig


class PiecePartition(Protocol):
    """See compressor.Partition; residual: float32, a NumPy array or a tensor on the device."""

    name: str
    coordinates: int
    residual: Any
    max_norms: F32
    clamped: int
    residual_kept: bool


class PieceCompressor(Protocol):
    """See compressor.Compressor. Gradients and residuals are where the kernels work, all other arrays in host memory.

    Calls for different partitions may come from different threads, those for one partition in order.
    """

    @property
    def config(self) -> ThcConfig:
        """The settings."""

    @property
    def resolved(self) -> ResolvedConfig:
        """What they come to for that many workers."""

    @property
    def workers(self) -> int:
        """Number of workers."""

    @property
    def worker(self) -> int:
        """This one's id."""

    def sizes(self, coordinates: int) -> tuple[int, int]:
        """Return (rotation blocks, padded coordinates) of a partition."""

    def partition(self, name: str, coordinates: int, *, residual: Any, norms: F32, codes: U8) -> Any:
        """Return a new PiecePartition. norms, codes: to be written by measure() and encode()."""

    def measure(self, partition: Any, gradient: Any, *, round: int, bfloat16: bool = False) -> F32:
        """Begin a round; the norms are in host memory on return."""

    def encode(self, partition: Any, max_norms: F32) -> U8:
        """Write codes and residual; the codes are in host memory on return, and max_norms may be written again."""

    def decode(
        self,
        partition: Any,
        aggregate: U8 | U16,
        contributions: U8 | U16,
        out: Any,
        *,
        codes_per_chunk: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        """Write the average to `out`.

        On a device that may go on after the return. It is over, and the arrays may be written again, when the next
        encode() of the partition returns.
        """
