"""A rank that goes through the cases of fsdp_cases.py, and of hsdp_cases.py when there are 4, and reports all results.

One program, because every process takes seconds to import torch's FSDP. settings: leave_out (names of cases); servers
(thc-ps, with 4 ranks).
"""

from __future__ import annotations

import sys
from pathlib import Path

from ranks import joined_rank
from torch.distributed.device_mesh import init_device_mesh

sys.path.insert(0, str(Path(__file__).parent))

import fsdp_cases
import hsdp_cases


def main() -> None:
    with joined_rank() as rank:
        mesh = init_device_mesh("cpu", (rank.ranks,))
        cases = [case for case in fsdp_cases.CASES if case.__name__ not in rank.settings["leave_out"]]
        report = {"fsdp": {case.__name__: case(rank, mesh) for case in cases}}
        if rank.ranks == 4:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            report["hsdp"] = {case.__name__: case(rank, mesh) for case in hsdp_cases.CASES}
        rank.report(report)


if __name__ == "__main__":
    main()
