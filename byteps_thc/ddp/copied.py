"""What a copied or unpickled ThcState is: copies of a DDP model average as plain DDP does.

An engine has connections, threads and a part in the ranks' order of collectives, none of which can be copied.
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from byteps_thc._scheme.settings import warn_once


class UncompressedState:
    """The state of a copied DDP model, made by copy.deepcopy() and pickle; says once in the log what it does."""

    def __init__(self) -> None:
        warn_once(
            "a copied or loaded ThcState does not compress: the copy of a DDP model averages as plain DDP does. Copy "
            "ddp.module and call compress() on a DDP of the copy to compress its gradients, too"
        )

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Average a bucket over the default process group, exactly; thc_hook calls it."""
        group = dist.group.WORLD
        assert group is not None, "there is a bucket of DDP, and so a process group"
        future: Future[Tensor] = allreduce_hook(group, bucket)
        return future

    def close(self) -> None:
        """Do nothing: there is no engine."""
