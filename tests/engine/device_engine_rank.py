"""A rank of engines that cannot be on a device. Reports what test_device_engine.py checks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch import Tensor

from byteps_thc import ThcConfig
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net import groups
from byteps_thc._scheme.errors import ConfigurationError

CONFIG = ThcConfig()
POLICY = CompressionPolicy(deadline_s=120)


def group() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def reduce(engine: FlatEngine, value: float) -> Tensor:
    gradient = torch.linspace(-value, 0.5, 4000)
    slices = tuple(ParameterSlice(name, 2000 * i, 2000 * (i + 1)) for i, name in enumerate("ab"))
    assert engine.all_reduce(GradientBuffer("1", gradient, slices)).wait() is gradient
    return gradient


def refused(rank: Rank) -> str:
    """The error when one rank alone wants what it cannot have."""
    policy = POLICY.model_copy(update={"kernels": "device" if rank.rank == 1 else "auto"})
    try:
        flat_engine(group(), CONFIG, policy)
    except ConfigurationError as error:
        return str(error)
    return ""


def nccl_alone(rank: Rank) -> bool:
    """Whether a group that has NCCL alone averages in host memory as one that has gloo; this torch has no NCCL."""
    averages = []
    for names in (None, ["nccl"]):
        known = groups.backends
        if names is not None:
            groups.backends = lambda _, names=names: names  # type: ignore[misc]
        try:
            engine = flat_engine(group(), CONFIG, POLICY.model_copy(update={"kernels": "host"}))
            engine.start_step()
            averages.append(reduce(engine, 1.0 + rank.rank))
            engine.close()
        finally:
            groups.backends = known
    return torch.equal(*averages) and not torch.equal(averages[0], torch.linspace(-1.0 - rank.rank, 0.5, 4000))


def main() -> None:
    with joined_rank() as rank:
        rank.report({check.__name__: check(rank) for check in (refused, nccl_alone)})


if __name__ == "__main__":
    main()
