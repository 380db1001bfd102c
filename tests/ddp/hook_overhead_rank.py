"""How long thc_hook keeps the thread that runs backward: 53 layers of ResNet-50's kind, in DDP's default buckets."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist
from ranks import joined_rank
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcConfig
from byteps_thc.ddp import ThcState, thc_hook

_LAYERS = 53
_STEPS = 20
_FIRST_STEPS = 3  # DDP rebuilds its buckets, layouts are made


def main() -> None:
    spent_ms: list[float] = []

    def timed_hook(state: ThcState, bucket):  # type: ignore[no-untyped-def]
        start = time.thread_time()
        future = thc_hook(state, bucket)
        spent_ms.append((time.thread_time() - start) * 1e3)
        return future

    with joined_rank() as rank:
        layers = [nn.Sequential(nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512)) for _ in range(_LAYERS)]
        ddp = DistributedDataParallel(nn.Sequential(*layers))
        state = ThcState(None, ThcConfig(), model=ddp)
        ddp.register_comm_hook(state, timed_hook)
        per_step = 0
        for step in range(_STEPS):
            if step == _FIRST_STEPS:
                spent_ms.clear()
            ddp(torch.randn(8, 512)).square().mean().backward()
            per_step = len(spent_ms)
            dist.barrier()
        buckets = per_step // (_STEPS - _FIRST_STEPS)
        # The least of all steps: whatever else runs on the machine leaves the caches cold, and so adds processor time.
        least_ms = [min(spent_ms[bucket::buckets]) for bucket in range(buckets)]
        rank.report({"mean_ms": statistics.mean(least_ms), "buckets": buckets})
        state.close()


if __name__ == "__main__":
    main()
