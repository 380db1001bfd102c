"""A rank that reports findings of a "GPU", Triton's interpreter. settings["wrong"]: a kernel of rank 1, or ""."""

from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from device_ranks import take_cpu_for_device_of_ranks
from torch import Tensor

from byteps_thc._cli.doctor.device import check_gpu
from byteps_thc._engine.device import self_check
from byteps_thc._scheme.decoding.gpu.block_batch import BlockBatch, GatherBatch
from thc_lab.ranks import Rank, joined_rank


def findings(rank: Rank) -> list[tuple[str, str, str]]:
    wrong = rank.settings["wrong"] if rank.rank == 1 else ""
    batches, name = GatherBatch if "gather" in wrong else BlockBatch, wrong.removeprefix("gather's ") or "decode"
    launch = getattr(batches, name)

    def changed(batch: BlockBatch | GatherBatch, source: Tensor, to: Tensor, *others: Any) -> None:
        launch(batch, source, to, *others)
        if wrong:
            to.view(-1)[-1:] += 1

    take_cpu_for_device_of_ranks()
    # The interpreter drops subnormal bfloat16 values.
    with patch.object(self_check, "DTYPES", (torch.float32,)), patch.object(batches, name, changed):
        assert dist.group.WORLD is not None
        found = check_gpu(torch.device("cpu"), dist.group.WORLD, coordinates=5000, parameters=2200)
    return [(finding.check, finding.state.value, finding.meaning) for finding in found]


with joined_rank(timeout_s=400) as rank:
    rank.report(findings(rank))
