"""A rank that trains a model with the host's kernels, and with a device's in Triton's interpreter (device_ranks.py)."""

import sys
from pathlib import Path
from typing import Any

import torch
from device_ranks import take_cpu_for_device_of_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from thc_lab.ranks import joined_rank

sys.path.insert(0, str(Path(__file__).parent))

from gather_cases import POLICY, full, inputs_of, sharded

from byteps_thc._base.torch_private import fsdp_all_gather, fsdp_groups
from byteps_thc.fsdp import compress

with joined_rank(timeout_s=120) as rank:
    take_cpu_for_device_of_ranks()
    mesh = init_device_mesh("cpu", (rank.ranks,))
    result: dict[str, Any] = {}
    for kernels in ("host", "device"):
        model = sharded(mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        compression = compress(model, policy=POLICY.model_copy(update={"kernels": kernels}))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            compression.gathers.keep_codes(step == 1)
            model(inputs_of(rank, step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        codes = fsdp_all_gather(fsdp_groups(model[0])[0])._codes
        result[kernels] = {"seen": [b.seen for b in model], "full": full(model), "codes": type(codes).__name__}
    rank.report(result)
