"""A rank that goes through the cases of fsdp_cases.py, and of hsdp_cases.py when there are 4, and reports all results.

One program, because every process takes seconds to import torch's FSDP. settings: cases (their names; null: all but
the slow ones); servers (thc-ps, with 4 ranks).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranks import Rank, joined_rank
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

sys.path.insert(0, str(Path(__file__).parent))

import fsdp_cases
import hsdp_cases

Case = Callable[[Rank, DeviceMesh], Any]
SLOW = {"training"}


def main() -> None:
    with joined_rank() as rank:
        mesh = init_device_mesh("cpu", (rank.ranks,))
        report = {"fsdp": run(fsdp_cases.CASES, rank, mesh)}
        if rank.ranks == 4:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            report["hsdp"] = run(hsdp_cases.CASES, rank, mesh)
        rank.report(report)


def run(cases: list[Case], rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    wanted = rank.settings["cases"]
    names = {case.__name__ for case in cases}.difference(SLOW) if wanted is None else wanted
    return {case.__name__: case(rank, mesh) for case in cases if case.__name__ in names}


if __name__ == "__main__":
    main()
