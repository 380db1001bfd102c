"""The place of a part of make bench-gpu, and its tables, which are written as soon as they have rows.

On a GPU with NCCL, one rank; or its stand-in, for tests: CPU tensors, gloo, Triton's interpreter, tiny sizes. The
stand-in's numbers mean nothing, but it makes all calls.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the first group, which would hold it (_net/communicator.py)
from torch.distributed.device_mesh import DeviceMesh

from byteps_thc._engine.factory import rank_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.groups import Communicators
from byteps_thc._scheme.decoding.settings import RankCodes

_DEADLINE = timedelta(seconds=60)


@dataclass
class Table:
    """Rows for the report, which is rewritten for each row, so that a part stopped by its limit keeps its rows."""

    path: Path | None
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: str | float | None) -> None:
        """A cell that is None could not be measured here."""
        self.rows.append(["" if cell is None else f"{cell:.3f}" if isinstance(cell, float) else cell for cell in cells])
        print("   ".join(self.rows[-1]), flush=True)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps({"columns": self.columns, "rows": self.rows}, indent=1))


@dataclass(frozen=True)
class Place:
    """device: of all tensors. group: one rank on NCCL, or gloo."""

    device: torch.device
    group: dist.ProcessGroup

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def engine(self, policy: CompressionPolicy | None = None) -> FlatEngine:
        """The device engine of DDP, which compresses for one rank. In the interpreter on the CPU."""
        policy = policy or CompressionPolicy()
        communicators = Communicators(self.group, policy.deadline_s)
        own = communicators.of_device() if self.on_gpu else communicators.of_host(1)[0]
        return rank_engine(
            RankCodes().resolve(1), 0, policy, [own], device=self.device, compress_alone=True,
            leave=communicators.close,
        )  # fmt: skip

    def mesh(self) -> DeviceMesh:
        """The mesh of the group's ranks."""
        return DeviceMesh.from_group(self.group, self.device.type)

    def host_us(self, call: Callable[[], object], calls: int) -> float:
        """Median host time of a call, over five batches; work that it starts is over before each batch."""
        for _ in range(3):
            call()
        batches = []
        for _ in range(5):
            self.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            batches.append((time.perf_counter() - start) / calls * 1e6)
        self.synchronize()
        return sorted(batches)[2]


def arguments_of(description: str | None, *more: Callable[[argparse.ArgumentParser], object]) -> argparse.Namespace:
    """The arguments of a part."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="where to write the table")
    parser.add_argument("--stand-in", action="store_true", help="CPU tensors and tiny sizes: see that it runs")
    for add in more:
        add(parser)
    return parser.parse_args()


@contextmanager
def place_of(arguments: Any, pretended_ranks: int = 0) -> Iterator[Place]:
    """Join a group of one rank. SystemExit without a GPU unless the stand-in is asked for.

    pretended_ranks: join one of so many, without any peer, and with collectives that do nothing.
    """
    if not arguments.stand_in and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here: --stand-in runs this on the CPU, with tiny sizes")
    with tempfile.TemporaryDirectory() as folder:
        if pretended_ranks:
            from torch.testing._internal.distributed.fake_pg import FakeStore

            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=pretended_ranks)
        else:
            store = dist.FileStore(f"{folder}/rendezvous", 1)
            backend = "gloo" if arguments.stand_in else "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=_DEADLINE)
        group = dist.group.WORLD
        assert group is not None
        try:
            yield Place(torch.device("cpu") if arguments.stand_in else torch.device("cuda", 0), group)
        finally:
            dist.destroy_process_group()
