"""Gradients of engine tests, and their averages in one process: by servers, and among ranks (rank_oracle.py)."""

import itertools
from typing import Any

import numpy as np
import torch
from rank_oracle import RankOracle
from server_oracle import ServerOracle
from torch import Tensor

from byteps_thc import ServerCodes
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.block_plan import BlockPlan, block_ends
from byteps_thc._scheme.decoding.settings import RankCodes

#: Sizes of parameters of two buffers, whose rotation blocks end at them.
TENSORS = [[1, 5000, 3, 70, 9000, 1, 20_000, 2048, 100], [7] * 1000]


def gradient_of(case: dict[str, Any], *, rank: int, step: int, number: int) -> Tensor:
    """Gradient of buffer `number` on a rank: normal, with another scale on every rank and in every parameter.

    With "zeros" (start, stop) these elements are zero on all ranks.
    """
    random = torch.Generator().manual_seed(1000 * step + 10 * number + rank)
    parts = [
        torch.randn(size, generator=random) * (1 + rank) * 10.0 ** -(part % 3)
        for part, size in enumerate(case["sizes"][number])
    ]
    gradient = torch.cat([*parts, torch.zeros(0)])
    if "zeros" in case:
        gradient[slice(*case["zeros"])] = 0
    if [rank, step, number] in case.get("not_finite", []):
        gradient[0] = float(case.get("value", "nan"))
    return gradient.to(getattr(torch, case.get("dtype", "float32")))


def buffers_of(case: dict[str, Any], gradients: list[Tensor]) -> list[GradientBuffer]:
    """Buffers with parameters of the case's sizes. "width": of rows with scales of their own, in all parameters."""
    buffers = []
    for number, (sizes, gradient) in enumerate(zip(case["sizes"], gradients, strict=True)):
        slices = tuple(
            ParameterSlice(f"{number}.{part}", start, stop, row=case.get("width", 0))
            for part, (start, stop) in enumerate(itertools.pairwise(np.cumsum([0, *sizes]).tolist()))
        )
        buffers.append(GradientBuffer(f"buffer{number}", gradient, slices))
    return buffers


class Simulation:
    """All workers' compressors in one process, called stage by stage: averages by servers, and residuals."""

    def __init__(self, config: ServerCodes, workers: int, policy: CompressionPolicy) -> None:
        self._config = config
        self._oracle = ServerOracle(config, workers)
        self._policy, self.round = policy, 0

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
            for name, span in self._oracle.average_in_pieces(first.key, gradients, self.round, plan, average):
                for partitions in self._oracle.partitions:
                    if (residual := partitions[name].residual) is not None:
                        residual[small[span].numpy()] = 0
        average[small] = exact[small].to(average.dtype)
        self.round += 1
        return average

    def travels_exactly(self, part: ParameterSlice) -> bool:
        return part.size < self._policy.bypass_elements or part.name in self._policy.exclude

    def residual(self, rank: int, buffer: GradientBuffer) -> Tensor:
        residual = self._oracle.residual(rank, buffer.key)
        return torch.zeros(buffer.gradient.numel()) if residual is None else torch.from_numpy(residual)


def of_all_ranks(case: dict[str, Any], ranks: int, step: int) -> list[list[Any]]:
    """[buffer][rank] -> GradientBuffer, before averaging."""
    by_rank = [
        buffers_of(case, [gradient_of(case, rank=rank, step=step, number=n) for n in range(len(case["sizes"]))])
        for rank in range(ranks)
    ]
    return [[buffers[n] for buffers in by_rank] for n in range(len(case["sizes"]))]


def bits(tensor: torch.Tensor) -> bytes:
    """All NaN count as one: processors give them other signs."""
    tensor = tensor.masked_fill(tensor.isnan(), torch.nan) if tensor.is_floating_point() else tensor
    return tensor.view(torch.uint8).numpy().tobytes()


def check_case(case: dict[str, Any], reports: list[dict[str, Any]]) -> None:
    """All ranks have the oracle's averages in every step; with servers, and the simulation's residuals at the end."""
    policy = CompressionPolicy(**case["policy"])
    if "network" in case:
        simulation = Simulation(ServerCodes(**case["thc"]), len(reports), policy)
        _check_averages(case, reports, simulation, same_exact=False)
        _check_residuals(case, reports, simulation)
    else:
        _check_averages(case, reports, RankOracle(RankCodes(**case["thc"]), len(reports), policy), same_exact=True)
        assert all(report["residuals"] == {} for report in reports)


def _check_averages(
    case: dict[str, Any], reports: list[dict[str, Any]], oracle: Simulation | RankOracle, *, same_exact: bool
) -> None:
    """same_exact: whether exact parameters, too, have the oracle's bits where others are compressed beside them."""
    for step in range(case["steps"]):
        for number, buffers in enumerate(of_all_ranks(case, len(reports), step)):
            expected = oracle.average(buffers) if buffers[0].gradient.numel() else buffers[0].gradient
            averages = [report["averages"][step][number] for report in reports]
            assert all(bits(average) == bits(averages[0]) for average in averages), (step, number)
            parts = buffers[0].parameters
            in_messages = same_exact and not all(oracle.travels_exactly(part) for part in parts)
            for part in parts:
                got, wanted = (values[part.start : part.stop] for values in (averages[0], expected))
                if oracle.travels_exactly(part) and not in_messages:  # sums of floats, in an order that is gloo's
                    torch.testing.assert_close(got, wanted, equal_nan=True)
                else:
                    assert bits(got) == bits(wanted), (step, part)
            if [1, step, number] in case.get("not_finite", []):
                assert not expected.isfinite().all()


def _check_residuals(case: dict[str, Any], reports: list[dict[str, Any]], simulation: Simulation) -> None:
    for rank, report in enumerate(reports):
        for number, buffers in enumerate(of_all_ranks(case, len(reports), 0)):
            expected = simulation.residual(rank, buffers[rank])
            for part in buffers[rank].parameters:
                kept = report["residuals"].get(part.name, torch.zeros(part.stop - part.start))
                assert bits(kept) == bits(expected[part.start : part.stop]), (number, part)
