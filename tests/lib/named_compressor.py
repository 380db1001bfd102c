"""A Compressor with a partition for every name, for tests that work out in one process what an engine must give."""

from __future__ import annotations

from typing import Any

from byteps_thc.arrays import F32
from byteps_thc.block_plan import WHOLE, BlockPlan
from byteps_thc.compressor import Compressor, Partition
from byteps_thc.config import ResolvedConfig, ThcConfig


class NamedCompressor(Compressor):
    """Makes a partition when its name comes for the first time."""

    def __init__(self, config: ThcConfig | ResolvedConfig, *, workers: int, worker: int) -> None:
        super().__init__(config, workers=workers, worker=worker)
        self.partitions: dict[str, Partition] = {}

    def begin(
        self, name: str, gradient: Any, *, round: int, tensor: int | None = None, plan: BlockPlan = WHOLE
    ) -> Partition:
        """Measure a gradient, and return its partition. plan: of its rotation blocks."""
        size = gradient.size if hasattr(gradient, "dtype") and isinstance(gradient.size, int) else gradient.numel()
        partition = self.partitions.get(name)
        if partition is None:
            partition = self.partitions[name] = self.partition(name, size, tensor=tensor, plan=plan)
        self.measure(partition, gradient, round=round)
        return partition

    @property
    def residuals(self) -> dict[str, F32]:
        """Return the residual of every name; empty without error feedback."""
        return {name: p.residual for name, p in self.partitions.items() if p.residual is not None}
