"""Averages by servers, to the bit: compressors of all workers in one process, and the sums that a server would make."""

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import reference
from torch import Tensor

from byteps_thc import Compressor, ServerCodes
from byteps_thc._base.arrays import F32, U8, U16, everybody, value_dtype
from byteps_thc._native import _core
from byteps_thc._scheme.adding.compressor import Partition
from byteps_thc._scheme.adding.server_codes import ResolvedCodes
from byteps_thc._scheme.block_plan import WHOLE, BlockPlan


class ServerOracle:
    """All workers of a job. partitions: of every worker, by name; made when a name comes for the first time."""

    def __init__(self, config: ServerCodes | ResolvedCodes, workers: int) -> None:
        self.compressors = [Compressor(config, workers=workers, worker=worker, threads=1) for worker in range(workers)]
        self.partitions: list[dict[str, Partition]] = [{} for _ in range(workers)]

    def encode(
        self,
        gradients: Sequence[Any],
        *,
        round: int = 1,
        name: str = "w",
        tensor: int | None = 0,
        plan: BlockPlan = WHOLE,
    ) -> list[Partition]:
        """Return the partitions of all workers, encoded. gradients: 1-D arrays or tensors, one of each worker."""
        partitions = []
        for compressor, kept, gradient in zip(self.compressors, self.partitions, gradients, strict=True):
            if name not in kept:
                kept[name] = compressor.partition(name, len(gradient), tensor=tensor, plan=plan)
            compressor.measure(kept[name], gradient, round=round)
            partitions.append(kept[name])
        maxima = reference.max_norms([partition.norms for partition in partitions])
        for compressor, partition in zip(self.compressors, partitions, strict=True):
            compressor.encode(partition, maxima)
        return partitions

    def aggregate(self, partitions: Sequence[Partition]) -> U8 | U16:
        resolved = self.compressors[0].resolved
        aggregate: U8 | U16 = np.zeros(partitions[0].padded, value_dtype(resolved.value_bits))
        for partition in partitions:
            _core.lookup_sum(partition.codes, resolved.table.array, aggregate, bits=resolved.table.bits, add=True)
        return aggregate

    def decode(self, partition: Partition, aggregate: U8 | U16, contributions: int, worker: int = 0) -> F32:
        """Return the average as a worker decodes it."""
        out = np.full(partition.coordinates, np.nan, np.float32)
        self.compressors[worker].decode(partition, aggregate, everybody(contributions), out)
        return out

    def average(self, gradients: Sequence[Any], *, out: Any = None, **key: Any) -> Any:
        """Return the average as worker 0 decodes it, float32, or in `out`. key: round, name, tensor, plan."""
        partitions = self.encode(gradients, **key)
        if out is None:
            return self.decode(partitions[0], self.aggregate(partitions), len(gradients))
        self.compressors[0].decode(partitions[0], self.aggregate(partitions), everybody(len(gradients)), out)
        return out

    def average_in_pieces(
        self, label: str, gradients: Sequence[Tensor], round: int, plan: BlockPlan, out: Tensor
    ) -> list[tuple[str, slice]]:
        """Write the average of 1-D gradients to `out`, in the pieces of an engine; return their names and places."""
        codes, pieces = self.compressors[0].resolved.codes, []
        for start, stop in even_cuts(out.numel(), codes.partition_coordinates, codes.rotation_block):
            name, span = f"{label}[{start}:{stop}]", slice(start, stop)
            own, tensor = [gradient[span] for gradient in gradients], zlib.crc32(name.encode())
            self.average(own, name=name, tensor=tensor, round=round, plan=plan.within(span), out=out[span])
            pieces.append((name, span))
        return pieces

    def residual(self, worker: int, name: str) -> F32 | None:
        """Return a worker's residuals of the partitions of a name, in their order; None: it has none.

        Partitions are called NAME, or NAME[START:STOP].
        """
        kept = self.partitions[worker]
        cuts = sorted((key for key in kept if key.split("[")[0] == name), key=_start)
        residuals = [residual for key in cuts if (residual := kept[key].residual) is not None]
        return np.concatenate(residuals) if residuals else None


def even_cuts(size: int, largest: int, block: int) -> list[tuple[int, int]]:
    """Cut into as few parts of at most `largest` elements as possible, even to a rotation block."""
    block = min(block, largest)
    blocks = -(-size // block)
    count = -(-blocks // (largest // block))
    starts = [part * blocks // count * block for part in range(count)]
    return list(itertools.pairwise([*starts, size]))


def _start(name: str) -> int:
    return int(name.split("[")[1].split(":")[0]) if "[" in name else 0
