"""Train a small model on all GPUs by DDP and FSDP2, with bf16 and with THC: losses and step times for an issue.

    torchrun --nproc-per-node gpu evaluation/gpu_acceptance.py

docs/examples/gpu_acceptance.sbatch starts it on several nodes. Rank 0 prints a row for each training. The exit code is
1 if ranks end with different parameters, if a loss with THC is more than 3 % above the peer's, or if the host
compresses gradients of GPUs. Without a GPU, gloo and fp16 replace NCCL and bf16, and times mean nothing.
"""

import argparse
import importlib.metadata
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import byteps_thc.ddp
import byteps_thc.fsdp

#: Share of tokens that follow the rule. The others are random, so no model reaches a loss of 0.
RULE = 0.9
MOST_ABOVE = 1.03
COLUMNS = "training      loss  ms a step  s to open  GB of GPU  bytes to fp32's"


@dataclass(frozen=True)
class Size:
    """Numbers of the model, and the tokens of a rank in a step."""

    width: int
    layers: int
    vocabulary: int
    tokens: int


#: 103 million parameters; and a model that only shows that the program runs.
LARGE, TINY = Size(1024, 12, 1024, 8192), Size(64, 2, 64, 256)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


@dataclass(frozen=True)
class Trainings:
    """The trainings of a rank. device: of the model."""

    device: torch.device
    size: Size
    steps: int

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def model(self) -> nn.Sequential:
        torch.manual_seed(0)
        size = self.size
        blocks = [Block(size.width) for _ in range(size.layers)]
        layers = nn.Embedding(size.vocabulary, size.width), *blocks, nn.Linear(size.width, size.vocabulary)
        return nn.Sequential(*layers).to(self.device)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tokens of this rank and the tokens behind them, the same in each training."""
        count, tokens = self.size.vocabulary, self.size.tokens
        follower = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(1 + dist.get_rank())
        for _ in range(self.steps):
            x, noise = torch.randint(count, (2, tokens), generator=generator)
            ruled = torch.rand(tokens, generator=generator) < RULE
            yield x.to(self.device), torch.where(ruled, follower[x], noise).to(self.device)

    def ddp(self, *, thc: bool) -> tuple[nn.Module, Any]:
        model = DistributedDataParallel(self.model(), device_ids=[self.device.index] if self.on_gpu else None)
        if thc:
            return model, byteps_thc.ddp.compress(model)
        # A hook of 16 bits. torch's hook of bf16 wants NCCL.
        peer = default_hooks.bf16_compress_hook if self.on_gpu else default_hooks.fp16_compress_hook
        model.register_comm_hook(None, peer)
        return model, None

    def fsdp2(self, *, thc: bool) -> tuple[nn.Module, Any]:
        model, mesh = self.model(), init_device_mesh(self.device.type, (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(torch.bfloat16 if self.on_gpu else None, reduce_dtype=torch.bfloat16)
        for module in (*model, model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        return model, byteps_thc.fsdp.compress(model) if thc else None

    def run(self, model: nn.Module) -> tuple[float, float]:
        """Return the mean loss of all steps and ranks, and milliseconds of a step in the second half."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if self.on_gpu else 1e-2)
        losses, half, began_s = list[Tensor](), self.steps // 2, 0.0
        for step, (tokens, wanted) in enumerate(self.batches()):
            if step == half:
                self.wait()
                began_s = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
                logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.float(), wanted)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        self.wait()
        ms = 1e3 * (time.perf_counter() - began_s) / (self.steps - half)
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)
        return mean.item() / dist.get_world_size(), ms

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def gpu_gb(self) -> float:
        """Return the GPU's memory in use, communicators and Triton included."""
        if not self.on_gpu:
            return 0.0
        free, total = torch.cuda.mem_get_info(self.device)
        return (total - free) / 1e9


def same_parameters(model: nn.Module) -> bool:
    """Return whether all ranks have the same bits in their parameters; collective."""
    own = torch.stack([each.detach().view(torch.int32).sum(dtype=torch.int64) for each in model.parameters()])
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    return all(torch.equal(own, theirs) for theirs in everyone)


def compare(trainings: Trainings) -> list[str]:
    """Run all trainings, print a row for each on rank 0, and return faults; collective."""
    faults, half = list[str](), "bf16" if trainings.on_gpu else "fp16"
    makers: list[tuple[str, Callable[..., tuple[nn.Module, Any]]]] = [
        ("DDP", trainings.ddp),
        ("FSDP2", trainings.fsdp2),
    ]
    say(COLUMNS)
    for name, make in makers:
        peers_loss = 0.0
        for thc in (False, True):
            began_s = time.perf_counter()
            model, handle = make(thc=thc)
            open_s = time.perf_counter() - began_s
            loss, ms = trainings.run(model)
            training = f"{name}, {'THC' if thc else half}"
            row = f"{training:12}{loss:6.3f}{ms:11.1f}{open_s:11.1f}{trainings.gpu_gb():11.1f}"
            if name == "DDP" and not same_parameters(model):
                faults.append(f"{training}: ranks have different parameters")
            if handle is not None:
                stats = handle.compression_stats()
                handle.close()
                row += f"  1 / {stats.ratio:.2f}"
                if trainings.on_gpu and stats.to_host_bytes:
                    faults.append(f"{training}: the host compressed the gradients, the log says why")
                if not loss <= MOST_ABOVE * peers_loss:
                    faults.append(f"{training}: loss {loss:.3f}, and {peers_loss:.3f} with {half}")
            peers_loss = loss
            say(row)
            del model, handle
    return faults


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def versions() -> str:
    """Return a line with versions, for an issue."""
    found = [f"torch {torch.__version__}", f"CUDA {torch.version.cuda}"]
    for package in ("byteps_thc", "triton"):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} is not installed")
    if torch.cuda.is_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        found += [f"NCCL {nccl}", torch.cuda.get_device_name()]
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    return f"{', '.join(found)}; {len(hosts)} ranks on {len({*hosts})} hosts"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="steps of each training")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    if dist.get_rank() == 0:
        logging.getLogger("byteps_thc").setLevel(logging.INFO)
    say(versions())
    faults = compare(Trainings(device, LARGE if on_gpu else TINY, arguments.steps))
    say("\n".join(["FAILED:", *faults]) if faults else "all is well")
    dist.destroy_process_group()
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
