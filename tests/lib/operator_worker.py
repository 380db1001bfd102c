"""A worker that is made of the operators of byteps_thc.ops, or of what runs behind them on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from byteps_thc import ThcConfig, ops
from byteps_thc.arrays import residual_torch_dtype

WORKERS = 2


@dataclass(frozen=True)
class Case:
    coordinates: int
    config: ThcConfig
    dtype: torch.dtype = torch.float32


CASES = {
    "float32": Case(1024 + 512 + 64 + 9, ThcConfig(rotation_block=1024, seed=0xF23456789ABCDEF, error_feedback=True)),
    "bfloat16": Case(
        1100, ThcConfig(rotation_block=256, bits=3, rounding="independent", error_feedback=False), torch.bfloat16
    ),
    "codes left over": Case(1000, ThcConfig(rotation_block=512, granularity=7, error_feedback=True)),
    "residual of bfloat16": Case(1000, ThcConfig(rotation_block=512, error_feedback=True, residual_dtype="bfloat16")),
    "float16": Case(2048, ThcConfig(rotation_block=2048, bits=8, granularity=300, error_feedback=True), torch.float16),
}


class OperatorWorker:
    """implementation: has functions called like the operators. Call set_round() before each round."""

    def __init__(self, implementation: Any, case: Case, worker: int, device: str = "cpu") -> None:
        self.ops, self.case = implementation, case
        self.resolved = case.config.resolve(WORKERS)
        self.block, self.threshold = case.config.rotation_block, self.resolved.table.threshold
        self.decode_threshold = self.resolved.decode_threshold
        self.table = ops.make_table(self.resolved, device)
        self.key = ops.make_key("layer", self.resolved, worker, device)
        kept = residual_torch_dtype(case.config.residual_dtype)
        feedback = self.resolved.error_feedback
        self.residual = torch.zeros(case.coordinates, dtype=kept, device=device) if feedback else None

    def set_round(self, round: int | Tensor) -> None:
        ops.set_round(self.key, round)

    def norms(self, gradient: Tensor) -> Tensor:
        norms: Tensor = self.ops.block_norms(gradient, self.residual, self.block)
        return norms

    def encode(self, gradient: Tensor, norms: Tensor, max_norms: Tensor) -> list[Tensor]:
        """Codes, whether the residual was kept, clamped coordinates."""
        return [
            *self.ops.encode(
                gradient, self.residual, norms, max_norms, self.table, self.key, self.threshold, self.block
            )
        ]

    def average(self, codes: list[Tensor], max_norms: Tensor) -> list[Tensor]:
        """Sums, and what they are decoded to."""
        sums = self.ops.lookup_sum(torch.stack(codes), self.table, self.resolved.value_bits)
        last = (WORKERS, self.decode_threshold, self.block, self.case.dtype)
        return [sums, self.ops.decode(sums, max_norms, self.table, self.key, self.case.coordinates, *last)]

    def average_alone(self, gradient: Tensor, round: Tensor) -> Tensor:
        """A whole round, as if both workers had this gradient: what a compiled function may be."""
        self.set_round(round)
        norms = self.norms(gradient)
        codes = self.encode(gradient, norms, norms)[0]
        return self.average([codes, codes], norms)[-1]


def maxima(norms: list[Tensor]) -> Tensor:
    """Of all workers, compared as integers."""
    return torch.stack([mine.view(torch.int32) for mine in norms]).amax(0).view(torch.float32)
