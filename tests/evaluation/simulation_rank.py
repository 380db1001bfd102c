"""A rank that trains the evaluation's perceptron with DDP and compress(), as a user does.

settings: {"seed": ..., "cases": {name: {"thc": of RankCodes, "policy": CompressionPolicy's, "steps": ...}}}.
"""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from trainings.train import MODELS

from byteps_thc.ddp import CompressionPolicy, compress
from thc_lab.ranks import Rank, joined_rank


def trained(rank: Rank, case: dict[str, Any]) -> dict[str, Any]:
    """Return this rank's gradient and the average of every step as DDP's bucket has them, the bucket and the loss."""
    small = MODELS["MLP"](rank.ranks, case["steps"], "SGD", rank.settings["seed"])
    training = small.training
    # With it DDP does not make its bucket anew after the first step, in another order.
    ddp = DistributedDataParallel(training.model, find_unused_parameters=True)
    state = compress(ddp, policy=CompressionPolicy(**case["policy"]), **case["thc"])
    buckets, gradients, averages, all_reduce = [], [], [], state.engine.all_reduce

    def noted(buffer: Any) -> Any:
        buckets.append([buffer.key, [part.name for part in buffer.parameters]])
        gradients.append(buffer.gradient.clone())
        return all_reduce(buffer)

    state.engine.all_reduce = noted  # type: ignore[method-assign]
    parameters = dict(training.model.named_parameters())
    for _ in range(training.steps):
        ddp.zero_grad()
        training.loss(ddp, *next(training.batches[rank.rank])).backward()
        averages.append(torch.cat([parameters[name].grad.flatten() for name in buckets[-1][1]]))
        training.update(torch.cat([parameter.grad.flatten() for parameter in training.parameters]))
    state.close()
    return {
        "gradients": torch.stack(gradients),
        "averages": torch.stack(averages),
        "buckets": buckets,
        "loss": small.losses()[1],
    }


with joined_rank() as me:
    me.report({name: trained(me, case) for name, case in me.settings["cases"].items()})
