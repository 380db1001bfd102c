"""Ranks on this host that average the same gradients by every hook: python -m byteps_thc._cli.compare.ranks FOLDER.

The ranks are forked and average by gloo over loopback, in DDP's own buckets, so a step's time is the processors' part.
FOLDER/job.json is a Job, FOLDER/<rank>.pt a rank's gradients (default: own_gradients()), FOLDER/<rank>.json its result.
"""

import contextlib
import datetime
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
import torch._dynamo  # DDP imports it, which takes seconds: once for all ranks
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._base.torch_private import FileStore
from byteps_thc._cli.compare.gradients import own_gradients
from byteps_thc._native import _core
from byteps_thc._scheme.adding.server_codes import ServerCodes
from byteps_thc._scheme.block_plan import BLOCK, TILE
from byteps_thc._scheme.decoding.settings import RankKeywords
from byteps_thc.ddp import NetworkConfig, ThcState, thc_hook

#: A step without averaging.
ALONE = "alone"
POWER_SGD_RANK = 4
POWER_SGD, SERVERS = f"PowerSGD, rank {POWER_SGD_RANK}", "THC, servers"
#: Bits of scales for each parameter.
_SCALE_BITS = 8 * _core.scale_bytes(TILE) / (TILE * BLOCK)
#: Bits of a parameter, both ways together, if they do not depend on the model.
BITS = {"fp32": 64, "bf16": 32, "fp16": 32, "THC 5+5": 2 * (5 + _SCALE_BITS), "THC 4+4": 2 * (4 + _SCALE_BITS)}
#: DDP rebuilds its buckets after the first step; torch's PowerSGD averages two steps in fp32 at least.
_WARM_UP_STEPS, POWER_SGD_START = 3, 2
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 40
#: As on Ethernet: loopback carries larger packets, whose codes cost less.
_CODES_PER_PACKET = 1024
_TIMEOUT = datetime.timedelta(seconds=120)

_Future = torch.futures.Future[Tensor]
_Hook = Callable[[dist.GradBucket], _Future]  # type: ignore[name-defined]


@dataclass(frozen=True)
class Job:
    """ranks on this host; parameters: of gradients that they make; servers: IP:PORT of thc-ps; device: on a GPU."""

    ranks: int
    parameters: int
    seconds: float
    servers: list[str]
    device: bool


class _Given(torch.autograd.Function):
    """Its backward gives a parameter a ready gradient."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, _parameter: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        return outputs[0], ctx.gradient, None


class _Model(nn.Module):
    """Parameters whose gradients are given."""

    def __init__(self, gradients: list[Tensor]) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.zeros_like(gradient) for gradient in gradients])
        self._gradients = gradients

    def forward(self) -> Tensor:
        total = torch.zeros(1, device=self._gradients[0].device, requires_grad=True)
        for parameter, gradient in zip(self.parts, self._gradients, strict=True):
            total = _Given.apply(total, parameter, gradient)  # type: ignore[no-untyped-call]
        return total


class Rank:
    """One rank, in the default process group. ways: names of hooks, "fp32" among them; none: all."""

    def __init__(self, job: Job, gradients: list[Tensor], ways: Sequence[str] = ()) -> None:
        self._exact = [_mean(gradient) for gradient in gradients]
        self._hooks = {name: hook for name, hook in _hooks(job).items() if not ways or name in ways}
        self._hook = self._hooks["fp32"]
        self._ddp = DistributedDataParallel(_Model(gradients), gradient_as_bucket_view=True)

        def hook(state: Rank, bucket: dist.GradBucket) -> _Future:  # type: ignore[name-defined]
            return state._hook(bucket)

        self._ddp.register_comm_hook(self, hook)

    def measure(self, seconds: float) -> dict[str, Any]:
        """Seconds of every step and the error of the first, by the name of the hook; ALONE: without averaging."""
        for _ in range(_WARM_UP_STEPS):
            self._step(ALONE)
            self._step("fp32")
        nmse = {}
        for name in self._hooks:
            for step in range(_WARM_UP_STEPS):
                self._step(name)
                if step == (POWER_SGD_START if name == POWER_SGD else 0):
                    nmse[name] = self._nmse()
        step_s: dict[str, list[float]] = {name: [] for name in (ALONE, *self._hooks)}
        end = time.monotonic() + seconds
        for number in range(_MOST_ROUNDS):
            for name, times in step_s.items():
                times.append(self._step(name))
            over = torch.tensor(float(number + 1 >= _LEAST_ROUNDS and time.monotonic() > end), device=self._device)
            dist.all_reduce(over)
            if over:
                break
        return {"step_s": step_s, "nmse": nmse}

    @property
    def _device(self) -> torch.device:
        return self._exact[0].device

    def _step(self, name: str) -> float:
        self._hook = self._hooks.get(name, self._hook)
        self._ddp.zero_grad()
        with self._ddp.no_sync() if name == ALONE else contextlib.nullcontext():
            total = self._ddp()
            dist.barrier()
            self._wait()
            start = time.perf_counter()
            total.backward()
            self._wait()
            return time.perf_counter() - start

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _nmse(self) -> float:
        """Squared error of the averages in the parameters, relative to the exact averages."""
        averages = [parameter.grad for parameter in self._ddp.parameters() if parameter.grad is not None]
        pairs = zip(averages, self._exact, strict=True)
        error = math.fsum(float((average.double() - exact).square().sum()) for average, exact in pairs)
        return error / math.fsum(float(exact.double().square().sum()) for exact in self._exact)


def power_sgd_by_bucket(state: PowerSGDState, bucket: dist.GradBucket) -> _Future:  # type: ignore[name-defined]
    """Average by torch's PowerSGD hook, and wait: later sums would begin in another order on each rank."""
    average = powerSGD_hook(state, bucket)
    average.wait()
    return average


def _hooks(job: Job) -> dict[str, _Hook]:
    """Every way to average a bucket, by the name that users see; collective."""

    def thc(network: NetworkConfig | None = None, **settings: Unpack[RankKeywords]) -> _Hook:
        state = ThcState(network=network, **settings)
        return lambda bucket: thc_hook(state, bucket)

    low = PowerSGDState(None, POWER_SGD_RANK, start_powerSGD_iter=POWER_SGD_START)
    group: Any = None  # the default one
    hooks: dict[str, _Hook] = {
        "fp32": lambda bucket: default_hooks.allreduce_hook(group, bucket),
        "bf16": lambda bucket: default_hooks.bf16_compress_hook(group, bucket),
        "fp16": lambda bucket: default_hooks.fp16_compress_hook(group, bucket),
        POWER_SGD: lambda bucket: power_sgd_by_bucket(low, bucket),
        "THC 5+5": thc(bits=5, down_bits=5),
        "THC 4+4": thc(bits=4, down_bits=4),
    }
    if job.servers:
        codes = ServerCodes(codes_per_packet=_CODES_PER_PACKET)
        hooks[SERVERS] = thc(NetworkConfig(servers=job.servers, job=1, codes=codes))
    return hooks


def _mean(gradient: Tensor) -> Tensor:
    total = gradient.double()
    dist.all_reduce(total)
    return total.div_(dist.get_world_size()).float()


def run_rank(folder: Path, job: Job, rank: int) -> None:
    """Join the others, measure, and write the result."""
    os.environ["RANK"] = str(rank)  # rank 0 warns
    torch.set_num_threads(1)
    device = torch.device("cuda" if job.device else "cpu")
    saved = folder / f"{rank}.pt"
    gradients = torch.load(saved, weights_only=True) if saved.exists() else own_gradients(job.parameters, rank)
    store = FileStore(str(folder / "rendezvous"), job.ranks)
    backend = "nccl" if job.device else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=job.ranks, timeout=_TIMEOUT)
    result = Rank(job, [gradient.to(device) for gradient in gradients]).measure(job.seconds)
    (folder / f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Fork the ranks, and end with an error if any rank does."""
    folder = Path(sys.argv[1])
    job = Job(**json.loads((folder / "job.json").read_text()))
    children = []
    for rank in range(1, job.ranks):
        child = os.fork()
        if not child:
            run_rank(folder, job, rank)
            return
        children.append(child)
    run_rank(folder, job, 0)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)


if __name__ == "__main__":
    main()
