"""A rank that writes down which files of byteps_thc a DDP bucket visits on its way from thc_hook to the wire and back.

settings: {"road": "ranks", "servers" or "levels", "servers": addresses}. Reports the files in the order of their first
visit, and which calls which. The bucket is not the first one of its step, which begins the step, too, and comes after
some others of its layout.
"""

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import byteps_thc
from byteps_thc import NetworkConfig
from byteps_thc.ddp import ThcState, thc_hook
from thc_lab.ranks import Rank, joined_rank

PACKAGE = str(Path(byteps_thc.__file__).parent) + "/"
STEPS = 4


class Walk:
    """A profiler of all threads that begin after it was made."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.calls: set[tuple[str, str]] = set()
        self.watching, self.steps = False, 0
        threading.setprofile(self._entered)

    def watch(self) -> None:
        """Begin, in this thread and the others."""
        self.watching = True
        sys.setprofile(self._entered)

    def end(self) -> None:
        self.watching = False
        sys.setprofile(None)

    def _entered(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.watching or event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        callers, caller = [], frame.f_back
        while caller is not None:
            callers.append(caller.f_code.co_filename)
            caller = caller.f_back
        name = frame.f_code.co_filename.removeprefix(PACKAGE)
        self.files.setdefault(name)
        own = [path.removeprefix(PACKAGE) for path in callers if path.startswith(PACKAGE)]
        self.calls.update((path, name) for path in own[:1])


def options(rank: Rank) -> dict[str, Any]:
    """The place of the averages: among the ranks, with servers, or in the levels of a mesh."""
    if rank.settings["road"] == "servers":
        return {"network": NetworkConfig(rank.settings["servers"])}
    if rank.settings["road"] == "levels":
        return {"levels": (init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within")), "between")}
    return {}


def averaged(rank: Rank) -> Walk:
    walk = Walk()
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), bucket_cap_mb=0.01)
    state = ThcState(model=ddp, **options(rank))

    def hook(state: ThcState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        if walk.steps == STEPS and bucket.index() == 1:
            walk.watch()
        return thc_hook(state, bucket)

    hook.__annotations__ = thc_hook.__annotations__
    ddp.register_comm_hook(state, hook)
    for _ in range(STEPS):
        walk.steps += 1
        ddp(torch.randn(8, 64)).sum().backward()
    walk.end()
    state.close()
    return walk


with joined_rank() as rank:
    walk = averaged(rank)
    rank.report({"files": [*walk.files], "calls": sorted(walk.calls)})
