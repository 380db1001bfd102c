"""One rank of bench_ddp.py, on its own host of the shaped network: times DDP's averaging, scheme by scheme, in turn.

Writes <folder>/rank<r>.json. Ranks meet through a file in the folder and talk over eth0.
"""

# No `from __future__ import annotations`: DDP reads the annotations of a hook and wants classes.
import argparse
import datetime
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcConfig
from byteps_thc.ddp import CompressionPolicy, NetworkConfig, ThcState, thc_hook

TIMEOUT_S = 120
WARM_UP_STEPS = 3  # DDP rebuilds its buckets after the first
WIDTH, LAYERS, ROWS = 1024, 24, 4
#: sums of four table values up to 15 take 6 bits
SIX_BIT_SUMS = ThcConfig(granularity=15)
ALL_REDUCE = CompressionPolicy(collective="all_reduce")


@dataclass
class Measured:
    """Of one rank and scheme."""

    step_s: list[float] = field(default_factory=list)
    """backward with the average of all buckets, one per repetition"""
    cpu_s: list[float] = field(default_factory=list)
    """processor time of all threads meanwhile, kernel included"""
    sent_bytes: int = 0
    """frames of one step, ACKs for what was received included"""
    stats: dict[str, float] = field(default_factory=dict)
    """compression_stats() of the last step"""
    hook_us: float = 0.0
    """median time of one call of thc_hook, which is for one bucket"""


class Scheme:
    """A DDP module whose buckets are averaged in fp32, by DDP itself."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.ddp = DistributedDataParallel(nn.Sequential(*layers), gradient_as_bucket_view=True)
        self.measured = Measured()

    def step(self, rows: Tensor, measured: Measured) -> None:
        """Time one backward with averaging; all ranks begin together."""
        self.ddp.zero_grad()
        loss = self.ddp(rows).square().mean()
        dist.barrier()
        start, cpu_start = time.perf_counter(), time.process_time()
        loss.backward()
        measured.step_s.append(time.perf_counter() - start)
        measured.cpu_s.append(time.process_time() - cpu_start)

    def count(self, rows: Tensor) -> None:
        """One more step, with what leaves this host meanwhile."""
        dist.barrier()
        before = interface_bytes()
        self.step(rows, Measured())
        dist.barrier()
        self.measured.sent_bytes = interface_bytes() - before


class Bf16(Scheme):
    """torch's bf16 hook."""

    def __init__(self) -> None:
        super().__init__()

        # DDP refuses the hook by its name on gloo, where it works as well.
        def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            return bf16_compress_hook(state, bucket)

        self.ddp.register_comm_hook(None, hook)


class Thc(Scheme):
    """thc_hook, with the time that each call of it takes."""

    def __init__(self, state: ThcState) -> None:
        super().__init__()
        self._state = state
        self._hook_s: list[float] = []

        def hook(state: ThcState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            start = time.perf_counter()
            average = thc_hook(state, bucket)
            self._hook_s.append(time.perf_counter() - start)
            return average

        self.ddp.register_comm_hook(self._state, hook)

    def count(self, rows: Tensor) -> None:
        super().count(rows)
        self.measured.stats = asdict(self._state.compression_stats())
        self.measured.hook_us = statistics.median(self._hook_s) * 1e6


def make_schemes(server: str) -> dict[str, Scheme]:
    """What is compared, by name."""
    return {
        "fp32": Scheme(),
        "bf16": Bf16(),
        "thc": Thc(ThcState(None, ThcConfig())),
        "thc_feedback": Thc(ThcState(None, ThcConfig(error_feedback=True))),
        "thc_exact": Thc(ThcState(None, ThcConfig(bits=4))),
        "thc_6bit": Thc(ThcState(None, SIX_BIT_SUMS)),
        "thc_all_reduce": Thc(ThcState(None, ThcConfig(), policy=ALL_REDUCE)),
        "thc_all_reduce_6bit": Thc(ThcState(None, ThcConfig(bits=6), policy=ALL_REDUCE)),
        "thc_ps": Thc(ThcState(None, ThcConfig(), network=NetworkConfig(servers=[server], job=1))),
    }


def backward_alone(scheme: Scheme, rows: Tensor, measured: Measured) -> None:
    """Time the same backward without averaging."""
    with scheme.ddp.no_sync():
        scheme.step(rows, measured)


def interface_bytes() -> int:
    """What has left eth0: bytes of the frames, counted where they are shaped."""
    shown = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"], stdout=subprocess.PIPE, timeout=10, check=True
    )
    return int(json.loads(shown.stdout)[0]["bytes"])


def rank_parser(description: str | None) -> argparse.ArgumentParser:
    """What bench_ddp.run_ranks() passes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    return parser


def run(args: argparse.Namespace, make: Callable[[], dict[str, Scheme]]) -> None:
    """Join the other ranks, measure the schemes in turn, and write the results. make: collective; with the
    first one backward is timed alone, too.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(args.folder / "rendezvous").as_uri(),
        rank=args.rank,
        world_size=args.ranks,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(args.rank))
    schemes = make()
    for _ in range(WARM_UP_STEPS):
        for scheme in schemes.values():
            scheme.step(rows, Measured())
    alone = Measured()
    for _ in range(args.repeats):
        backward_alone(next(iter(schemes.values())), rows, alone)
        for scheme in schemes.values():
            scheme.step(rows, scheme.measured)
    for scheme in schemes.values():
        scheme.count(rows)
    results = {"backward": asdict(alone)} | {name: asdict(scheme.measured) for name, scheme in schemes.items()}
    (args.folder / f"rank{args.rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = rank_parser(__doc__)
    parser.add_argument("--server", required=True, help="IP:PORT of thc-ps")
    args = parser.parse_args()
    run(args, lambda: make_schemes(args.server))


if __name__ == "__main__":
    main()
