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
from byteps_thc.arrays import everybody, value_dtype
from byteps_thc.block_plan import BlockPlan, block_ends
from byteps_thc.compressor import SCALE_GROUP, scale_groups
from byteps_thc.config import ResolvedConfig
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.transport.among_ranks import resolve_among_ranks
from byteps_thc.transport.shards import ShardLayout

#: Sizes of parameters of two buffers, whose rotation blocks end at them.
TENSORS = [[1, 5000, 3, 70, 9000, 1, 20_000, 2048, 100], [7] * 1000]


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
    """Gradient of buffer `number` on a rank: normal, with another scale on every rank and in every parameter.

    With "alike" all ranks have the same one.
    """
    rank = 0 if case.get("alike") else rank
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

    Knows nothing of the engines' threads and packed sums: it sums the table values of all ranks' codes. Of shards it
    knows whose they are, where sums are requantized: what that loses stays with the owner. joint: the shards are those
    of all pieces of a buffer together, as on a device.
    """

    def __init__(self, resolved: ResolvedConfig, policy: CompressionPolicy, *, joint: bool = False) -> None:
        ranks = resolved.workers
        self.compressors = [NamedCompressor(resolved, workers=ranks, worker=rank) for rank in range(ranks)]
        self._policy = policy
        self.joint = joint
        self.round = 0

    def average(self, buffers: list[GradientBuffer]) -> Tensor:
        """Return the average of one buffer, given as it is on every rank."""
        first = buffers[0]
        gradients = [buffer.gradient.clone() for buffer in buffers]
        small = torch.zeros(first.gradient.numel(), dtype=torch.bool)
        for part in first.parameters:
            small[part.start : part.stop] = self.travels_exactly(part)
        exact = torch.stack([gradient.float() for gradient in gradients]).sum(0) / len(buffers)
        average = torch.empty_like(first.gradient)
        for gradient in gradients:
            gradient[small] = 0
        if not small.all():
            large = [part for part in first.parameters if not self.travels_exactly(part)]
            spans = tuple(span for part in large if (span := part.row_span) is not None)
            plan = BlockPlan(block_ends((part.start, part.stop) for part in large), spans)
            cuts = pieces(len(average), self.compressors[0].config)
            for span, place in zip(cuts, self._places([span.stop - span.start for span in cuts]), strict=True):
                name, own = f"{first.key}[{span.start}:{span.stop}]", plan.within(span)
                self._piece(name, [g[span] for g in gradients], average[span], own, *place)
                for compressor in self.compressors:
                    residual = compressor.residuals.get(name)
                    if residual is not None:
                        residual[small[span].numpy()] = 0
        average[small] = exact[small].to(average.dtype)
        self.round += 1
        return average

    def travels_exactly(self, part: ParameterSlice) -> bool:
        return part.size < self._policy.bypass_elements or part.name in self._policy.exclude

    def residual(self, rank: int, buffer: GradientBuffer) -> Tensor:
        """The residual of a whole buffer."""
        pieces = [v for name, v in self.compressors[rank].residuals.items() if name.startswith(buffer.key + "[")]
        return torch.from_numpy(np.concatenate(pieces)) if pieces else torch.zeros(buffer.gradient.numel())

    def _places(self, sizes: list[int]) -> list[tuple[int, int]]:
        """Where each piece begins in what is cut into shards, and the codes of a shard."""
        padded = [self.compressors[0].sizes(size)[1] for size in sizes]
        if not self.joint:
            return [(0, self._shard_codes(codes)) for codes in padded]
        ends = np.cumsum([scale_groups(codes) * SCALE_GROUP for codes in padded]).tolist()
        return [(start, self._shard_codes(ends[-1])) for start in [0, *ends[:-1]]]

    def _shard_codes(self, codes: int) -> int:
        return ShardLayout.of(self.compressors[0].resolved, codes).shard_codes

    def _piece(
        self, name: str, gradients: list[Tensor], out: Tensor, plan: BlockPlan, start: int, shard_codes: int
    ) -> None:
        key: dict[str, Any] = {"tensor": zlib.crc32(name.encode()), "round": self.round, "plan": plan}
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
        received = sums, everybody(resolved.workers)
        if resolved.down is not None:
            received = received_from_owners(self.compressors, partitions, sums, start, shard_codes)
        for compressor, partition in zip(self.compressors, partitions, strict=True):
            if compressor is self.compressors[0] or partition.clamp is not None:  # all look at the average
                compressor.decode(partition, *received, out)


def received_from_owners(
    compressors: list[NamedCompressor], partitions: list[Any], sums: np.ndarray, start: int, shard_codes: int
) -> tuple[np.ndarray, np.ndarray]:
    """What decode() takes of the sums of a piece, requantized by their owners.

    start: where the piece begins in what is cut into shards of `shard_codes`.
    """
    down = compressors[0].resolved.down
    assert down is not None
    values, scales = np.zeros(sums.size, np.uint8), np.zeros(scale_groups(sums.size), np.uint16)
    for owner, (compressor, partition) in enumerate(zip(compressors, partitions, strict=True)):
        begin, end = (min(max(owner * shard_codes + edge - start, 0), sums.size) for edge in (0, shard_codes))
        if begin == end:
            continue
        codes = np.zeros(_core.code_bytes(end - begin, down.bits), np.uint8)
        limits = scales[begin // SCALE_GROUP :][: scale_groups(end - begin)]
        compressor.requantize(partition, sums[begin:end], codes, limits, first=begin)
        _core.lookup_sum(codes, down.array, values[begin:end], bits=down.bits, add=False)
    return values, scales


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
    simulation = Simulation(resolved, policy, joint=reports[0].get("device", False))
    for step in range(case["steps"]):
        for number, buffers in enumerate(of_all_ranks(case, ranks, step)):
            expected = simulation.average(buffers) if buffers[0].gradient.numel() else buffers[0].gradient
            averages = [report["averages"][step][number] for report in reports]
            assert all(bits(average) == bits(averages[0]) for average in averages), (step, number)
            for part in buffers[0].parameters:
                got, wanted = (values[part.start : part.stop] for values in (averages[0], expected))
                if simulation.travels_exactly(part):  # sums of floats, in an order that is gloo's
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
