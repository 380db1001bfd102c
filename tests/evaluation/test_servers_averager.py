"""Averages of workers and servers in one process keep what they lose, or lose little."""

from __future__ import annotations

import numpy as np
import torch
from averages.servers_averager import ServersAverager

from byteps_thc import ThcConfig

WORKERS, COORDINATES = 4, 5000


def test_with_feedback_nothing_is_lost() -> None:
    averager = ServersAverager(ThcConfig(bits=2, error_feedback=True).resolve(WORKERS), COORDINATES)
    gradients = torch.randn(3, WORKERS, COORDINATES, generator=torch.Generator().manual_seed(1))
    total = sum(averager.average(of_step) for of_step in gradients)
    residuals = [partition.residual for partition in averager.partitions if partition.residual is not None]
    assert len(residuals) == WORKERS
    kept = np.mean(residuals, axis=0)
    assert np.linalg.norm(kept) > 0.1 * np.linalg.norm(total)
    torch.testing.assert_close(total + torch.from_numpy(kept), gradients.mean(dim=1).sum(dim=0), rtol=0, atol=1e-4)


def test_averages_without_feedback_are_near() -> None:
    averager = ServersAverager(ThcConfig(error_feedback=False).resolve(WORKERS), COORDINATES)
    gradients = torch.randn(WORKERS, COORDINATES, generator=torch.Generator().manual_seed(1))
    exact = gradients.mean(dim=0)
    error = float((averager.average(gradients) - exact).square().sum() / exact.square().sum())
    assert error < 0.02
    assert averager.partitions[0].residual is None
