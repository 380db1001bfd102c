"""Averages of a compressed reduce-scatter, to the bit, in one process (rank_oracle.py)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from rank_oracle import RankOracle
from torch import Tensor

from byteps_thc import ThcConfig


class ReduceScatterOracle:
    """The ranks of one parameter group, in FSDP2's layout: row w of the gradient has rank w's shards."""

    def __init__(
        self, key: str, parameters: Sequence[str], bypassed: Sequence[str], ranks: int, config: ThcConfig
    ) -> None:
        self.key = key
        self.parameters = list(parameters)
        self.bypassed = bypassed
        self.ranks = ranks
        self._oracle = RankOracle(config, ranks)

    def averages(self, gradients: Sequence[Mapping[str, Tensor]], round: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the averages of compressed parameters, in `dtype`; gradients: of every rank."""
        rows = [self._rows([own[name] for name in self.parameters]).to(dtype) for own in gradients]
        edges = [0, *itertools.accumulate(self._widths(gradients[0]))]
        places = zip(self.parameters, itertools.pairwise(edges), strict=True)
        tensors = [place for name, place in places if name not in self.bypassed]
        self._oracle.round = round
        return self._parameters_of(self._oracle.rows(self.key, rows, tensors), gradients[0])

    def _rows(self, gradients: list[Tensor]) -> Tensor:
        """torch's own layout; bypassed parameters are zeros."""
        kept = [g if name not in self.bypassed else g * 0 for name, g in zip(self.parameters, gradients, strict=True)]
        return torch._chunk_cat(kept, dim=0, num_chunks=self.ranks)

    def _widths(self, shapes: Mapping[str, Tensor]) -> list[int]:
        return [-(-shapes[n].shape[0] // self.ranks) * shapes[n][0].numel() for n in self.parameters]

    def _parameters_of(self, rows: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Cut rows into parameters, padding removed."""
        parts = dict(zip(self.parameters, rows.split(self._widths(shapes), dim=1), strict=True))
        return {
            name: part.reshape(-1)[: shapes[name].numel()].view(shapes[name].shape)
            for name, part in parts.items()
            if name not in self.bypassed
        }
