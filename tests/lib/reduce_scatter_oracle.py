"""What a compressed reduce-scatter must give, worked out in one process with compressors alone."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from gradients import even_cuts
from named_compressor import NamedCompressor
from torch import Tensor

from byteps_thc import ThcConfig, _core
from byteps_thc.arrays import everybody, value_dtype


class ReduceScatterOracle:
    """The ranks of one parameter group, FSDP2's layout of it: row w of the gradient has rank w's shards."""

    def __init__(
        self, key: str, parameters: Sequence[str], bypassed: Sequence[str], ranks: int, config: ThcConfig
    ) -> None:
        self.key = key
        self.parameters = list(parameters)
        self.bypassed = bypassed
        self.ranks = ranks
        self.config = config
        self.compressors = [
            NamedCompressor(config.resolve_for_owners(ranks), workers=ranks, worker=worker) for worker in range(ranks)
        ]
        self.residuals = [dict[str, Tensor]() for _ in range(ranks)]

    def averages(self, gradients: Sequence[Mapping[str, Tensor]], round: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the averages of compressed parameters, in `dtype`; gradients: of every rank."""
        rows = [self._rows([own[name] for name in self.parameters]).to(dtype) for own in gradients]
        padding = self._rows([torch.ones_like(gradients[0][name]) for name in self.parameters]) == 0
        out = torch.stack([self._row([own[r] for own in rows], padding[r], r, round) for r in range(self.ranks)])
        self._keep_residuals(gradients[0])
        return self._parameters_of(out, gradients[0])

    def _rows(self, gradients: list[Tensor]) -> Tensor:
        """torch's own layout; bypassed parameters are zeros."""
        kept = [g if name not in self.bypassed else g * 0 for name, g in zip(self.parameters, gradients, strict=True)]
        return torch._chunk_cat(kept, dim=0, num_chunks=self.ranks)

    def _row(self, own: list[Tensor], padding: Tensor, row: int, round: int) -> Tensor:
        width = max(self.config.partition_coordinates // self.ranks // self.config.rotation_block, 1)
        width *= self.config.rotation_block
        average = torch.empty_like(own[0])
        for start, stop in even_cuts(len(average), width, self.config.rotation_block):
            name = f"{self.key}[{row},{start}:{stop}]"
            self._piece(name, [gradient[start:stop] for gradient in own], average[start:stop], round)
            for compressor in self.compressors:
                compressor.residuals[name][padding[start:stop].numpy()] = 0
        return average

    def _piece(self, name: str, own: list[Tensor], average: Tensor, round: int) -> None:
        tensor = zlib.crc32(name.encode())
        pieces = [c.begin(name, g, tensor=tensor, round=round) for c, g in zip(self.compressors, own, strict=True)]
        norms = np.maximum.reduce([piece.norms for piece in pieces])
        aggregate = np.zeros(pieces[0].padded, value_dtype(self.compressors[0].resolved.value_bits))
        for worker, (compressor, piece) in enumerate(zip(self.compressors, pieces, strict=True)):
            codes = compressor.encode(piece, norms)
            _core.lookup_sum(codes, compressor.table.array, aggregate, bits=self.config.code_bits, add=worker > 0)
        self.compressors[0].decode(pieces[0], aggregate, everybody(self.ranks), average)

    def _parameters_of(self, rows: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Cut rows into parameters, padding removed."""
        widths = [-(-shapes[n].shape[0] // self.ranks) * shapes[n][0].numel() for n in self.parameters]
        parts = dict(zip(self.parameters, rows.split(widths, dim=1), strict=True))
        return {
            name: part.reshape(-1)[: shapes[name].numel()].view(shapes[name].shape)
            for name, part in parts.items()
            if name not in self.bypassed
        }

    def _keep_residuals(self, shapes: Mapping[str, Tensor]) -> None:
        for worker, compressor in enumerate(self.compressors):
            rows: dict[int, list[Tensor]] = {}
            for name, residual in compressor.residuals.items():
                row = int(name.rsplit("[", 1)[1].split(",")[0])
                rows.setdefault(row, []).append(torch.from_numpy(residual))
            flat = torch.stack([torch.cat(rows[row]) for row in range(self.ranks)])
            self.residuals[worker] = {n: r.reshape(-1).clone() for n, r in self._parameters_of(flat, shapes).items()}
