"""A compressor on a device and one in host memory that are asked the same, through any network."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from byteps_thc import Compressor
from byteps_thc._base.arrays import residual_of_tensor
from byteps_thc._engine import factory
from byteps_thc._scheme.block_plan import WHOLE, BlockPlan


class TwinCompressors:
    """A StagedCompressor beside a Compressor, whose bits must be the same; gradients are finite float32 or float16.

    contributions: all numbers of workers that chunks have had.
    """

    def __init__(self, staged: Any) -> None:
        self._staged = staged
        self._host = Compressor(staged.resolved, workers=staged.workers, worker=staged.worker, threads=1)
        self.contributions: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._staged, name)

    def partition(
        self, name: str, coordinates: int, *, plan: BlockPlan = WHOLE, residual: Tensor, **arrays: Any
    ) -> Any:
        partition = self._staged.partition(name, coordinates, plan=plan, residual=residual, **arrays)
        partition.twin = self._host.partition(
            name, coordinates, plan=plan, residual=residual_of_tensor(residual).copy()
        )
        return partition

    def measure(self, partition: Any, gradient: Tensor, *, round: int, bfloat16: bool = False) -> Any:
        assert not bfloat16
        norms = self._staged.measure(partition, gradient, round=round)
        twin = self._host.measure(partition.twin, gradient.cpu().clone(), round=round)
        np.testing.assert_allclose(norms, twin, rtol=1e-6)  # in the last place: _scheme/adding/gpu/norms.py
        return norms

    def encode(self, partition: Any, max_norms: Any) -> Any:
        codes, twin = self._staged.encode(partition, max_norms), partition.twin
        np.testing.assert_array_equal(codes, self._host.encode(twin, max_norms))
        np.testing.assert_array_equal(residual_of_tensor(partition.residual), twin.residual)
        assert (partition.clamped, partition.residual_kept) == (twin.clamped, twin.residual_kept)
        return codes

    def decode(self, partition: Any, aggregate: Any, contributions: Any, out: Tensor, **chunks: Any) -> None:
        self._staged.decode(partition, aggregate, contributions, out, **chunks)
        wanted = torch.empty_like(out, device="cpu")
        self._host.decode(partition.twin, aggregate, contributions, wanted, **chunks)
        assert torch.equal(out.cpu(), wanted)
        self.contributions |= set(contributions.tolist())


def add_twins() -> list[TwinCompressors]:
    """From now on, device kernels in this process have twins; return the list of twins."""
    make, made = factory.StagedCompressor, list[TwinCompressors]()

    def with_twin(*arguments: Any) -> TwinCompressors:
        made.append(TwinCompressors(make(*arguments)))
        return made[-1]

    factory.StagedCompressor = with_twin  # type: ignore[assignment,misc]
    return made
