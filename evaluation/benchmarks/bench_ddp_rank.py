"""One rank of bench_ddp.py, on its own host of the shaped network: times DDP's averaging, scheme by scheme, in turn.

shaped_ddp/steps.py describes the output.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict

import torch
import torch.distributed as dist
from shaped_ddp.steps import Bf16, PowerSgd, Prepare, Scheme, rank_parser, run
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc.ddp import NetworkConfig, ThcState, thc_hook

WIDTH, LAYERS, ROWS = 1024, 24, 4


def make_model() -> nn.Module:
    """24 linear layers, the same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def backward_of(rank: int) -> Prepare:
    """The backward is timed, on rows of the rank's own."""
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(rank))

    def prepare(ddp: DistributedDataParallel) -> Callable[[], object]:
        ddp.zero_grad()
        loss: Tensor = ddp(rows).square().mean()
        return loss.backward

    return prepare


class Thc(Scheme):
    """thc_hook, with the time of each call."""

    def __init__(self, prepare: Prepare, state: ThcState) -> None:
        super().__init__(make_model(), prepare)
        self._state = state
        self._hook_s: list[float] = []

        def hook(state: ThcState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            start = time.perf_counter()
            average = thc_hook(state, bucket)
            self._hook_s.append(time.perf_counter() - start)
            return average

        self.ddp.register_comm_hook(self._state, hook)

    def count(self) -> None:
        super().count()
        self.measured.stats = asdict(self._state.compression_stats())
        self.measured.hook_us = statistics.median(self._hook_s) * 1e6


def make_schemes(prepare: Prepare, server: str) -> dict[str, Scheme]:
    """The compared schemes, by name."""
    return {
        "fp32": Scheme(make_model(), prepare),
        "bf16": Bf16(make_model(), prepare),
        "power_sgd": PowerSgd(make_model(), prepare, 4),
        "thc_5": Thc(prepare, ThcState(bits=5)),
        "thc_4": Thc(prepare, ThcState(bits=4)),
        "thc_ps": Thc(prepare, ThcState(network=NetworkConfig(servers=[server], job=1))),
    }


def main() -> None:
    parser = rank_parser(__doc__)
    parser.add_argument("--server", required=True, help="IP:PORT of thc-ps")
    args = parser.parse_args()
    run(args, lambda: make_schemes(backward_of(args.rank), args.server))


if __name__ == "__main__":
    main()
