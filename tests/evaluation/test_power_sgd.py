"""PowerSGD of n workers in one process gives the averages of torch's own hook on as many ranks."""

from __future__ import annotations

from pathlib import Path

import torch
from averages.averagers import make
from averages.power_sgd import PowerSgd
from ranks import run_ranks

WORKERS, STEPS = 2, 5
#: The last two are not worth compressing with rank 4.
SHAPES = [[24, 32], [16, 3, 3, 3], [40], [5, 6]]
RANK_PROGRAM = Path(__file__).with_name("power_sgd_rank.py")


def test_averages_are_those_of_the_hook(tmp_path: Path) -> None:
    settings = {"shapes": SHAPES, "rank": 4, "steps": STEPS}
    hook = run_ranks(RANK_PROGRAM, WORKERS, tmp_path, settings=settings)[0]
    shapes = [torch.Size(shape) for shape in SHAPES]
    averager = make(PowerSgd(rank=4, start=2), WORKERS, [slice(0, 0)], shapes=shapes)
    for step in range(STEPS):
        workers = []
        for worker in range(WORKERS):
            random = torch.Generator().manual_seed(100 * step + worker)
            workers.append(torch.cat([torch.randn(shape, generator=random).flatten() for shape in shapes]))
        torch.testing.assert_close(averager.average(torch.stack(workers)), hook[step], rtol=1e-4, atol=1e-5)


def test_bytes_are_those_of_both_factors_and_of_what_is_not_compressed() -> None:
    shapes = [torch.Size(shape) for shape in SHAPES]
    averager = make(PowerSgd(rank=4), WORKERS, [slice(0, 0)], shapes=shapes)
    assert averager.bytes_both_ways == 2 * 4 * (4 * (24 + 32) + 4 * (16 + 27) + 40 + 5 * 6)
