"""A rank that goes through the cases of fsdp_cases.py and overlap_cases.py, or hsdp_cases.py, and reports all results.

One program for all, because every process takes seconds to import torch's FSDP. settings: replicas (hsdp_cases.py, as 2
replicas x 2 shards); servers (thc-ps, for replicas).
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
import overlap_cases

Case = Callable[[Rank, DeviceMesh], Any]


def main() -> None:
    with joined_rank() as rank:
        if rank.settings["replicas"]:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            cases: list[Case] = [*hsdp_cases.CASES]
        else:
            mesh = init_device_mesh("cpu", (rank.ranks,))
            cases = [*fsdp_cases.CASES, *overlap_cases.CASES]
        rank.report({case.__name__: case(rank, mesh) for case in cases})


if __name__ == "__main__":
    main()
