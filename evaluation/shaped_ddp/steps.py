"""One rank on its own host of a shaped network: times DDP's steps, scheme by scheme, in turn.

A program makes its schemes when run() has joined the other ranks; its results are <folder>/rank<r>.json. Ranks meet
through a file in the folder and talk over eth0.
"""

import argparse
import datetime
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._cli.compare.ranks import POWER_SGD_START, power_sgd_by_bucket
from byteps_thc._scheme.decoding.settings import RankKeywords
from byteps_thc.ddp import NetworkConfig, compress
from shaped_ddp.ranks import ALONE

TIMEOUT_S = 120
WARM_UP_STEPS = 3  # DDP rebuilds its buckets after the first

#: Does the untimed part of a step, and returns the timed one.
Prepare = Callable[[DistributedDataParallel], Callable[[], object]]


@dataclass
class Measured:
    """Measurements of one rank and scheme."""

    step_s: list[float] = field(default_factory=list)
    """the timed part of a step, one per repetition"""
    cpu_s: list[float] = field(default_factory=list)
    """processor time of all threads meanwhile, kernel included"""
    sent_bytes: int = 0
    """frames of one step, ACKs for received data included"""
    stats: dict[str, float] = field(default_factory=dict)
    """compression_stats() of the last step"""
    hook_us: float = 0.0
    """median time of one call of thc_hook, which is for one bucket"""


class Scheme:
    """A DDP module whose buckets are averaged in fp32, by DDP itself."""

    def __init__(self, model: nn.Module, prepare: Prepare) -> None:
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.measured = Measured()
        self._prepare = prepare

    def step(self, measured: Measured) -> None:
        """Time one step; all ranks begin together."""
        timed = self._prepare(self.ddp)
        dist.barrier()
        start, cpu_start = time.perf_counter(), time.process_time()
        timed()
        measured.step_s.append(time.perf_counter() - start)
        measured.cpu_s.append(time.process_time() - cpu_start)

    def step_alone(self, measured: Measured) -> None:
        """Time the same step without averaging."""
        with self.ddp.no_sync():
            self.step(measured)

    def count(self) -> None:
        """Run one more step, and count bytes that leave this host meanwhile."""
        dist.barrier()
        before = interface_bytes()
        self.step(Measured())
        dist.barrier()
        self.measured.sent_bytes = interface_bytes() - before


class Bf16(Scheme):
    """torch's bf16 hook."""

    def __init__(self, model: nn.Module, prepare: Prepare) -> None:
        super().__init__(model, prepare)

        # DDP refuses the hook by its name on gloo, where it works as well.
        def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            return bf16_compress_hook(state, bucket)

        self.ddp.register_comm_hook(None, hook)


class PowerSgd(Scheme):
    """torch's PowerSGD hook, with error feedback and warm start."""

    def __init__(self, model: nn.Module, prepare: Prepare, rank: int) -> None:
        super().__init__(model, prepare)
        state = PowerSGDState(None, rank, start_powerSGD_iter=POWER_SGD_START)
        self.ddp.register_comm_hook(state, power_sgd_by_bucket)


class Compressed(Scheme):
    """THC, as users have it."""

    def __init__(
        self,
        model: nn.Module,
        prepare: Prepare,
        network: NetworkConfig | None = None,
        **settings: Unpack[RankKeywords],
    ) -> None:
        super().__init__(model, prepare)
        self._state = compress(self.ddp, network=network, **settings)

    def count(self) -> None:
        super().count()
        self.measured.stats = asdict(self._state.compression_stats())


def interface_bytes() -> int:
    """Bytes of the frames that have left eth0, counted where they are shaped."""
    shown = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"], stdout=subprocess.PIPE, timeout=10, check=True
    )
    return int(json.loads(shown.stdout)[0]["bytes"])


def rank_parser(description: str | None) -> argparse.ArgumentParser:
    """Options of ranks.run_ranks(), and the number of repetitions."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    return parser


def join(args: argparse.Namespace, timeout_s: float) -> None:
    """Meet the other ranks through a file in the folder; over eth0, with one thread. args: of rank_parser()."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(args.folder / "rendezvous").as_uri(),
        rank=args.rank,
        world_size=args.ranks,
        timeout=datetime.timedelta(seconds=timeout_s),
    )


def run(args: argparse.Namespace, make: Callable[[], dict[str, Scheme]]) -> None:
    """Join the other ranks, measure the schemes in turn, and write the results. make: collective; the first one's
    step is timed without averaging, too.
    """
    join(args, TIMEOUT_S)
    schemes = make()
    for _ in range(WARM_UP_STEPS):
        for scheme in schemes.values():
            scheme.step(Measured())
    alone = Measured()
    for _ in range(args.repeats):
        next(iter(schemes.values())).step_alone(alone)
        for scheme in schemes.values():
            scheme.step(scheme.measured)
    for scheme in schemes.values():
        scheme.count()
    results = {ALONE: asdict(alone)} | {name: asdict(scheme.measured) for name, scheme in schemes.items()}
    (args.folder / f"rank{args.rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
