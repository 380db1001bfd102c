"""A rank whose backward pass is compiled with the hook in it (optimize_ddp="python_reducer")."""

from __future__ import annotations

import torch
import torch._dynamo
from ranks import joined_rank
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcConfig
from byteps_thc.ddp import ThcState, thc_hook
from byteps_thc.ddp.state import average_gradient

# DDP reads these when it is made.
torch._dynamo.config.optimize_ddp = "python_reducer"
torch._dynamo.config.compiled_autograd = True


def main() -> None:
    with joined_rank() as rank:
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)))
        state = ThcState(None, ThcConfig(), model=ddp)
        ddp.register_comm_hook(state, thc_hook)
        compiled = torch.compile(ddp, backend="aot_eager")
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        torch.manual_seed(rank.rank)
        for _ in range(4):
            optimizer.zero_grad()
            compiled(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
        result = {
            "parameters": torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()]),
            "rounds": state.state_dict()["round"],
            "steps": state.compression_stats().steps,
        }
        # Every check calls the operator with copies: parameters of no model. All ranks do so equally often.
        nameless = ThcState(None, ThcConfig())
        checks = torch.library.opcheck(average_gradient, (torch.randn(64, 64), torch.randn(64, 64), nameless.number))
        nameless.close()
        rank.report(result | {"checks": dict(checks)})
        state.close()


if __name__ == "__main__":
    main()
