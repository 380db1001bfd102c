"""A rank that makes a ThcState before the process group, as Lightning's DDPStrategy is given one."""

import gc
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._base.errors import ConfigurationError
from byteps_thc.ddp import ThcState, thc_hook
from thc_lab.ranks import joined_rank


def gradients(state: ThcState, rank: int) -> tuple[list[Tensor], Any]:
    """Return the gradients of a backward pass, and a reference to the model."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(64, 64))
    ddp.register_comm_hook(state, thc_hook)
    ddp(torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))).square().mean().backward()
    return [parameter.grad.clone() for parameter in ddp.parameters()], weakref.ref(ddp.module)


early = ThcState(bits=2)
unused = ThcState(bits=2)
said = {"early": repr(early)}
try:
    early.state_dict()
except ConfigurationError as error:
    said["state_dict"] = str(error)
unused.close()
with joined_rank() as rank:
    late = ThcState(bits=2)
    (own, _), (same, model) = gradients(early, rank.rank), gradients(late, rank.rank)
    said["opened"] = repr(early)
    steps, counted = early.compression_stats().steps, early.state_dict()["step"]
    for state in (early, late):
        state.close()
    del state, late
    gc.collect()
    result = {"own": own, "same": same, "said": said, "steps": steps, "counted": counted}
    rank.report(result | {"model_is_gone": model() is None})
