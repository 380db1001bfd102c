"""BytePS with THC: the interface of byteps.torch, and Compression.thc.

    import byteps_thc.torch as bps

    bps.init()
    optimizer = bps.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=bps.Compression.thc(servers=["10.0.0.1"])
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)

Start the script with bpslaunch, as every BytePS training. Requires BytePS in the same Python (make byteps).
"""

import byteps_thc._base.needs_torch  # noqa: F401
from byteps_thc._net.byteps.process import local_rank, local_size, rank, resume, shutdown, size, suspend
from byteps_thc._net.byteps.push_pull import declare, poll, push_pull_async_inplace, synchronize
from byteps_thc.torch.operations import (
    broadcast_optimizer_state,
    broadcast_parameters,
    init,
    push_pull,
    push_pull_async,
    push_pull_inplace,
)
from byteps_thc.torch.optimizer.distributed_optimizer import DistributedOptimizer
from byteps_thc.torch.settings import Compression, ThcCompression

#: The name that byteps.torch gives push_pull_async_inplace.
byteps_push_pull = push_pull_async_inplace

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "ThcCompression",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "declare",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]
