"""Cases of *_cases.py in one program, because every process takes seconds to import torch's FSDP.

settings: replicas (hsdp_cases.py and tensor_cases.py, as 2 x 2 ranks); servers (thc-ps, for replicas).
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from thc_lab.ranks import Rank, joined_rank

sys.path.insert(0, str(Path(__file__).parent))

import fsdp_cases
import gather_cases
import hsdp_cases
import overlap_cases
import tensor_cases

Case = Callable[[Rank, DeviceMesh], Any]

with joined_rank() as rank:
    if rank.settings["replicas"]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        cases: list[Case] = [*hsdp_cases.CASES, *tensor_cases.CASES]
    else:
        mesh = init_device_mesh("cpu", (rank.ranks,))
        cases = [*fsdp_cases.CASES, *overlap_cases.CASES, *gather_cases.CASES]
    rank.report({case.__name__: case(rank, mesh) for case in cases})
