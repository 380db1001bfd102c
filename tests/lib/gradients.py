"""Gradients of engine tests, and what the average of them must be: n Compressors in this process, no network."""

from __future__ import annotations

import itertools
import math
import zlib
from typing import Any

import numpy as np
import reference
import torch
from named_compressor import NamedCompressor
from torch import Tensor

from byteps_thc import ThcConfig, _core
from byteps_thc.arrays import value_dtype
from byteps_thc.compressor import received_by_all
from byteps_thc.config import ResolvedConfig
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.transport.among_ranks import resolve_among_ranks


def pieces(size: int, config: ThcConfig) -> list[slice]:
    """What a buffer of `size` elements is cut into."""
    return [slice(*cut) for cut in even_cuts(size, config.partition_coordinates, config.rotation_block)]


def even_cuts(size: int, largest: int, block: int) -> list[tuple[int, int]]:
    """As few parts as possible of `largest` elements at most, even to a rotation block."""
    blocks = math.ceil(size / block)
    count = math.ceil(blocks / (largest // block))
    starts = [part * blocks // count * block for part in range(count)]
    return list(itertools.pairwise([*starts, size]))


def gradient_of(case: dict[str, Any], *, rank: int, step: int, number: int) -> Tensor:
    """Gradient of buffer `number` on a rank: normal, with another scale on every rank and in every parameter."""
    random = torch.Generator().manual_seed(1000 * step + 10 * number + rank)
    parts = [
        torch.randn(size, generator=random) * (1 + rank) * 10.0 ** -(part % 3)
        for part, size in enumerate(case["sizes"][number])
    ]
    gradient = torch.cat([*parts, torch.zeros(0)])
    if [rank, step, number] in case.get("not_finite", []):
        gradient[0] = float("nan")
    return gradient.to(getattr(torch, case.get("dtype", "float32")))


def buffers_of(case: dict[str, Any], gradients: list[Tensor]) -> list[GradientBuffer]:
    """Buffers with parameters of the case's sizes."""
    buffers = []
    for number, (sizes, gradient) in enumerate(zip(case["sizes"], gradients, strict=True)):
        ends = np.cumsum([0, *sizes]).tolist()
        slices = tuple(
            ParameterSlice(f"{number}.{part}", start, stop)
            for part, (start, stop) in enumerate(itertools.pairwise(ends))
        )
        buffers.append(GradientBuffer(f"buffer{number}", gradient, slices))
    return buffers


class Simulation:
    """All ranks' compressors in one process, called stage by stage.

    Knows nothing of the engines' threads, shards and packed sums: it sums the table values of all ranks' codes.
    """

    def __init__(self, resolved: ResolvedConfig, bypass_elements: int) -> None:
        ranks = resolved.workers
        self.compressors = [NamedCompressor(resolved, workers=ranks, worker=rank) for rank in range(ranks)]
        self.bypass_elements = bypass_elements
        self.round = 0

    def average(self, buffers: list[GradientBuffer]) -> Tensor:
        """Return the average of one buffer, given as it is on every rank."""
        first = buffers[0]
        gradients = [buffer.gradient.clone() for buffer in buffers]
        small = torch.zeros(first.gradient.numel(), dtype=torch.bool)
        for part in first.parameters:
            small[part.start : part.stop] = part.stop - part.start < self.bypass_elements
        exact = torch.stack([gradient.float() for gradient in gradients]).sum(0) / len(buffers)
        average = torch.empty_like(first.gradient)
        for gradient in gradients:
            gradient[small] = 0
        if not small.all():
            for span in pieces(len(average), self.compressors[0].config):
                self._piece(f"{first.key}[{span.start}:{span.stop}]", [g[span] for g in gradients], average[span])
                for compressor in self.compressors:
                    residual = compressor.residuals.get(f"{first.key}[{span.start}:{span.stop}]")
                    if residual is not None:
                        residual[small[span].numpy()] = 0
        average[small] = exact[small].to(average.dtype)
        self.round += 1
        return average

    def residual(self, rank: int, buffer: GradientBuffer) -> Tensor:
        """The residual of a whole buffer."""
        pieces = [v for name, v in self.compressors[rank].residuals.items() if name.startswith(buffer.key + "[")]
        return torch.from_numpy(np.concatenate(pieces)) if pieces else torch.zeros(buffer.gradient.numel())

    def _piece(self, name: str, gradients: list[Tensor], out: Tensor) -> None:
        key = {"tensor": zlib.crc32(name.encode()), "round": self.round}
        partitions = [
            compressor.begin(name, gradient, **key)
            for compressor, gradient in zip(self.compressors, gradients, strict=True)
        ]
        max_norms = reference.max_norms([partition.norms for partition in partitions])
        resolved = self.compressors[0].resolved
        sums = np.zeros(partitions[0].padded, value_dtype(resolved.value_bits))
        for compressor, partition in zip(self.compressors, partitions, strict=True):
            codes = compressor.encode(partition, max_norms)
            _core.lookup_sum(codes, resolved.table.array, sums, bits=resolved.table.bits, add=True)
        first = self.compressors[0]
        first.decode(partitions[0], *received_by_all(first, partitions[0], sums), out)


def of_all_ranks(case: dict[str, Any], ranks: int, step: int) -> list[list[Any]]:
    """[buffer][rank] -> GradientBuffer, before averaging."""
    by_rank = [
        buffers_of(case, [gradient_of(case, rank=rank, step=step, number=n) for n in range(len(case["sizes"]))])
        for rank in range(ranks)
    ]
    return [[buffers[n] for buffers in by_rank] for n in range(len(case["sizes"]))]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


def check_case(case: dict[str, Any], reports: list[dict[str, Any]]) -> None:
    """All ranks have the simulation's averages in every step, and its residuals at the end."""
    ranks = len(reports)
    config, policy = ThcConfig(**case["thc"]), CompressionPolicy(**case["policy"])
    over_network = "network" in case
    resolved = config.resolve(ranks) if over_network else resolve_among_ranks(config, policy.collective, ranks)
    simulation = Simulation(resolved, policy.bypass_elements)
    for step in range(case["steps"]):
        for number, buffers in enumerate(of_all_ranks(case, ranks, step)):
            expected = simulation.average(buffers) if buffers[0].gradient.numel() else buffers[0].gradient
            averages = [report["averages"][step][number] for report in reports]
            assert all(bits(average) == bits(averages[0]) for average in averages), (step, number)
            for part in buffers[0].parameters:
                got, wanted = (values[part.start : part.stop] for values in (averages[0], expected))
                if part.size < simulation.bypass_elements:  # sums of floats, in an order that is gloo's
                    torch.testing.assert_close(got, wanted, equal_nan=True)
                else:
                    assert bits(got) == bits(wanted), (step, part)
            if [1, step, number] in case.get("not_finite", []):
                assert expected.isnan().any()
    for rank, report in enumerate(reports):
        for number, buffers in enumerate(of_all_ranks(case, ranks, 0)):
            expected = simulation.residual(rank, buffers[rank])
            for part in buffers[rank].parameters:
                kept = report["residuals"].get(part.name, torch.zeros(part.stop - part.start))
                assert bits(kept) == bits(expected[part.start : part.stop]), (number, part)
