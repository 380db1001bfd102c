"""The communication hook. Annotations are not postponed here: DDP compares them with types."""

import torch
import torch.distributed as dist

from byteps_thc.ddp.operator import average_gradient
from byteps_thc.ddp.state import ThcState


def thc_hook(state: ThcState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Average a bucket of gradients over the ranks, compressed as `state` says; for ddp.register_comm_hook.

    bucket: float32, float16 or bfloat16; it is averaged in place, the same to the bit on all ranks. Raises InputError
    for sparse gradients and other types. When a rank dies or is too late, backward raises a RuntimeError with the text
    of TransportError or DeadlineError, and TransportError itself from then on.
    """
    if isinstance(bucket, tuple):  # torch.compile with optimize_ddp="python_reducer", which takes no result
        gradient, parameter = bucket
        average_gradient(gradient, parameter, state.number)
        return None  # type: ignore[return-value]
    return state.average(bucket)
