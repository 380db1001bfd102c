"""The communication hook. Annotations are not postponed here: DDP compares them with types."""

import torch
import torch.distributed as dist

from byteps_thc.ddp.operator import average_gradient
from byteps_thc.ddp.state import ThcState
from byteps_thc.errors import ConfigurationError
from byteps_thc.settings import describe


def thc_hook(state: ThcState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Average a bucket of gradients over the ranks, compressed as `state` says; for ddp.register_comm_hook.

    bucket: float32, float16 or bfloat16; it is averaged in place, the same to the bit on all ranks. Raises InputError
    for sparse gradients and other types. When a rank dies or is too late, backward raises a RuntimeError with the text
    of TransportError or DeadlineError, and TransportError itself from then on. ConfigurationError for another state.
    """
    if not isinstance(state, ThcState):
        raise ConfigurationError(
            f"thc_hook was registered with {describe(state)} as its state, not a ThcState: call "
            "byteps_thc.ddp.compress(ddp), or ddp.register_comm_hook(ThcState(None, ThcConfig()), thc_hook)"
        )
    if isinstance(bucket, tuple):  # torch.compile with optimize_ddp="python_reducer", which takes no result
        gradient, parameter = bucket
        average_gradient(gradient, parameter, state.number)
        return None  # type: ignore[return-value]
    return state.average(bucket)
