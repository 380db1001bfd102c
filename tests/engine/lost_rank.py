"""A rank that waits for rank 1 in a front end. Rank 1 is late, or is killed, in its third step.

settings: {"front_end": name of a function here; "how": "late" or "killed"}. Reports the number of steps without an
error, all errors, and the seconds of errors and of close().
"""

import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from error_of import error_of
from known_gradients import all_shapes, gradients, sharded_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import CompressionPolicy, ParameterSynchronizer, ThcReducer
from byteps_thc.ddp import ThcState, thc_hook
from byteps_thc.fsdp import compress_reduce_scatter
from thc_lab.ranks import Rank, joined_rank

DEADLINE_S = 6.0  # a busy machine takes less for steps without a fault
POLICY = CompressionPolicy(deadline_s=DEADLINE_S)
#: Prepares a step alone and returns the call that waits for other ranks.
Prepare = Callable[[], Callable[[], object]]


def ddp(_: Rank, **levels: Any) -> tuple[Prepare, Callable[[], None]]:
    model = DistributedDataParallel(nn.Linear(256, 256))
    state = ThcState(policy=POLICY, **levels)
    model.register_comm_hook(state, thc_hook)
    return lambda: model(torch.randn(4, 256)).square().mean().backward, state.close


def two_levels(rank: Rank) -> tuple[Prepare, Callable[[], None]]:
    mesh = init_device_mesh("cpu", (2, rank.ranks // 2), mesh_dim_names=("between", "within"))
    return ddp(rank, levels=(mesh, "between"))


def fsdp(rank: Rank) -> tuple[Prepare, Callable[[], None]]:
    model = sharded_model(init_device_mesh("cpu", (rank.ranks,)), reshard_after_forward=False)
    dist.barrier()  # a rank may have imported FSDP seconds before another
    handle = compress_reduce_scatter(model, policy=POLICY)
    return lambda: model(gradients(rank.rank, 0, all_shapes())).backward, handle.close


def synchronization(_: Rank) -> tuple[Prepare, Callable[[], None]]:
    handle = ThcReducer(policy=POLICY)
    synchronizer = ParameterSynchronizer(nn.Linear(40, 40), compression=handle, synchronize_every=2)

    def prepare() -> Callable[[], object]:
        synchronizer.step()
        return synchronizer.step

    return prepare, handle.close


def reducer(rank: Rank) -> tuple[Prepare, Callable[[], None]]:
    """Two calls are in flight when rank 1, which makes none in its third step, is lost."""
    handle, steps = ThcReducer(policy=POLICY), itertools.count()

    def prepare() -> Callable[[], object]:
        names = "" if next(steps) == 2 and rank.rank == 1 else "ab"
        works = [handle.all_reduce({name: torch.ones(1 << 20)}, async_op=True) for name in names]

        def wait() -> None:
            assert len({error_of(work.wait) for work in works}) == 1, "all calls in flight have one error"
            works[0].wait()

        return wait

    return prepare, handle.close


def run(rank: Rank) -> dict[str, Any]:
    front_end, how = rank.settings["front_end"], rank.settings["how"]
    prepare, close = globals()[front_end](rank)
    steps, errors, seconds = 0, list[str](), list[float]()
    # FSDP2 gathers parameters in forward with torch's own collectives, so a step after an error would hang.
    for step in range(3 if front_end in ("fsdp", "synchronization") else 4):
        wait: Callable[[], object] = prepare() if step == 2 else lambda: prepare()()
        if step == 2:
            dist.barrier()
            if rank.rank == 1 and how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif rank.rank == 1:
                time.sleep(2 * DEADLINE_S)
        start = time.monotonic()
        error = error_of(wait)
        steps += not error
        if error:
            errors.append(error)
            seconds.append(time.monotonic() - start)
    start = time.monotonic()
    close()
    return {"steps": steps, "errors": errors, "seconds": seconds, "close_seconds": time.monotonic() - start}


with joined_rank() as this_rank:
    this_rank.report(run(this_rank))
    os._exit(0)  # the default group cannot be left in good order any more
