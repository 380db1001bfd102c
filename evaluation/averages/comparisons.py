"""What lowers the error of the average at equal bytes: schemes, tables for a measured density, and their errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from trainings.models import Training

from averages.averaging import Averager, Scheme, Table, hadamard
from byteps_thc.block_plan import block_ends
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.tables import LookupTable, solver
from byteps_thc.tables.store import GRID_P

#: Tables of 4 bits that byteps_thc 0.1 took for 4 workers, without and with error feedback.
FORMER_TABLES = {False: LookupTable.solve(4, 40, 1 / 256), True: LookupTable.solve(4, 38, 1 / 64)}
#: 8-bit sums of 4 workers take a granularity of 63 at most.
GRANULARITIES = (26, 32, 38, 44, 50, 56, 62)
#: Steps of a window that only fill the residuals.
WARM_UP_STEPS = 4


@dataclass(frozen=True)
class Window:
    """Gradients of n workers in consecutive steps of a training, each float32[workers, coordinates].

    Without parameters so small that they travel uncompressed.
    """

    name: str
    gradients: list[Tensor]
    tensors: list[slice]

    def correlated(self, deviation: float) -> Window:
        """Workers' deviations from their mean times `deviation`: about what batches 1 / deviation^2 as large give."""
        means = [gradients.mean(dim=0) for gradients in self.gradients]
        near = [mean + deviation * (g - mean) for mean, g in zip(means, self.gradients, strict=True)]
        return Window(f"{self.name}, correlated", near, self.tensors)

    @property
    def cosine(self) -> float:
        """Mean cosine between the gradients of two workers."""
        unit = torch.stack([gradients / gradients.norm(dim=1, keepdim=True) for gradients in self.gradients])
        workers = unit.shape[1]
        total = float(torch.einsum("swc,svc->", unit, unit)) / len(unit)
        return (total - workers) / (workers * (workers - 1))


def windows_of(training: Training, name: str, length: int, *, trained: int | None = None) -> Iterator[Window]:
    """Train on exact averages; give `length` steps each after a 20th, at half and at the end of the training.

    trained: workers that train between the windows (default: all).
    """
    batches = training.batches
    kept = [span for span in training.tensors if span.stop - span.start >= CompressionPolicy().bypass_elements]
    ends = itertools.accumulate((span.stop - span.start for span in kept), initial=0)
    tensors = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
    starts = {"early": training.steps // 20, "middle": training.steps // 2, "late": training.steps - length}
    for phase, start in starts.items():
        training.batches = batches[:trained]
        while training.taken < start:
            training.update(training.gradients().mean(dim=0))
        training.batches = batches
        window = Window(f"{name} {phase}", [], tensors)
        for _ in range(length):
            gradients = training.gradients()
            training.update(gradients.mean(dim=0))
            window.gradients.append(torch.cat([gradients[:, span] for span in kept], dim=1))
        yield window


def sampled(window: Window, block: int, blocks: int, length: int) -> Window:
    """Some blocks from all over the gradients of the first steps, to choose tables on."""
    step = max(1, window.gradients[0].shape[1] // block // blocks)
    gradients = [
        g[:, : g.shape[1] // block * block].view(len(g), -1, block)[:, ::step][:, :blocks].reshape(len(g), -1)
        for g in window.gradients[:length]
    ]
    return Window(window.name, gradients, [slice(0, gradients[0].shape[1])])


def normal_window(coordinates: int, length: int, workers: int, device: str) -> Window:
    """Independent standard normal vectors."""
    random = torch.Generator(device).manual_seed(7)
    gradients = [torch.randn((workers, coordinates), generator=random, device=device) for _ in range(length)]
    return Window("normal", gradients, [slice(0, coordinates)])


@dataclass(frozen=True)
class Errors:
    """Squared errors of the average, relative to the average's energy; means over the steps.

    nmse: of all coordinates together. tensor_nmse: per tensor, mean over the tensors by size: a tensor of small
    gradients counts as much as one of large ones.
    """

    nmse: float
    tensor_nmse: float


def measure(scheme: Scheme, window: Window, *, by_tensor: bool = False, ends: bool = False, seed: int = 0) -> Errors:
    """Average all steps of the window; by_tensor: rotate every tensor by itself instead of all as one bucket; ends: in
    blocks that end at tensors.
    """
    coordinates = window.tensors[-1].stop
    where = block_ends((span.start, span.stop) for span in window.tensors) if ends else ()
    averager = Averager(scheme, window.tensors if by_tensor else [slice(0, coordinates)], ends=where, seed=seed)
    nmse, tensor_nmse = [], []
    steps = window.gradients if scheme.error_feedback else window.gradients[WARM_UP_STEPS:]
    for step, gradients in enumerate(steps):
        exact = gradients.mean(dim=0)
        error, energy = (averager.average(gradients) - exact).square(), exact.square()
        if scheme.error_feedback and step < WARM_UP_STEPS:
            continue
        nmse.append(error.sum() / energy.sum())
        sums = [(error[span].sum(), energy[span].sum(), span.stop - span.start) for span in window.tensors]
        tensor_nmse.append(sum(e / g.clamp_min(1e-30) * size for e, g, size in sums) / coordinates)
    return Errors(float(torch.stack(nmse).mean()), float(torch.stack(tensor_nmse).mean()))


def max_norm_penalty(window: Window, block: int) -> float:
    """Energy of the blocks' largest norms over the workers, relative to the workers' mean energy.

    The granular error grows by this factor, because all workers' steps are in units of the largest norm.
    """
    gradients = window.gradients[0]
    blocks = gradients[:, : gradients.shape[1] // block * block].view(len(gradients), -1, block).square().sum(dim=2)
    return float(blocks.amax(dim=0).sum() / blocks.mean(dim=0).sum())


def best_table(scheme: Scheme, window: Window, tables: Iterable[Table]) -> Table:
    """The table of least error on a window."""
    return min(tables, key=lambda table: measure(replace(scheme, table=table), window).nmse)


def normal_tables() -> list[Table]:
    """Optimal tables for a normal density, of every granularity and p on a grid."""
    return [Table.of(LookupTable.solve(4, g, p)) for g in GRANULARITIES for p in GRID_P]


def measured_tables(samples: Tensor, *, values: int = 16, thresholds: Sequence[float] | None = None) -> list[Table]:
    """The same for the density of `samples`, coordinates in units of the clamp; symmetric."""
    if thresholds is None:
        thresholds = [LookupTable.solve(4, 15, p).threshold for p in GRID_P]
    ordered = np.sort(torch.cat([samples, -samples]).double().cpu().numpy())
    return [_solve(ordered, g, threshold, values) for g in GRANULARITIES for threshold in thresholds]


def _solve(samples: np.ndarray, granularity: int, threshold: float, values: int) -> Table:
    """byteps_thc.tables.solver's table for sorted samples: the cost of an interval from sums below its ends."""
    points = threshold * (2 * np.arange(granularity + 1) / granularity - 1)
    below = np.searchsorted(samples, points)
    zero, one, two = (np.concatenate([[0.0], np.cumsum(samples**k)])[below] for k in (0, 1, 2))
    a, b = points[:, None], points[None, :]
    mass, first, second = (sums[None, :] - sums[:, None] for sums in (zero, one, two))
    costs = ((a + b) * first - second - a * b * mass) / len(samples)
    costs[np.tri(granularity + 1, dtype=bool)] = np.inf
    found, _ = solver.optimal_values(costs[None], [values - 1])[values - 1]
    return Table(tuple(found[0].tolist()), threshold)


def rotated_samples(window: Window, scheme: Scheme, *, count: int = 400_000) -> Tensor:
    """Rotated coordinates of all workers in units of the largest norm, or of their group's scale."""
    block, gradients = scheme.rotation_block, window.gradients[0]
    random = torch.Generator(gradients.device).manual_seed(5)
    blocks = gradients[:, : gradients.shape[1] // block * block].reshape(len(gradients), -1, block)
    signs = torch.randint(2, (block,), generator=random, device=gradients.device) * 2.0 - 1
    rotated = hadamard(blocks * signs)
    unit = blocks.norm(dim=2, keepdim=True).amax(dim=0, keepdim=True)
    if scheme.scale_group:
        rotated = rotated.view(*rotated.shape[:2], -1, scheme.scale_group)
        unit = rotated.abs().amax(dim=(0, 3), keepdim=True)
    flat = (rotated / unit.clamp_min(1e-30)).flatten()
    chosen = torch.randint(len(flat), (count,), generator=random, device=flat.device)
    return flat[chosen]
