"""A rank of the device engine on CPU tensors, in what happens seldom. Reports what test_device_engine.py checks."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from host_device_compressor import HostDeviceCompressor, make_host_device_engine
from ranks import Rank, joined_rank
from torch import Tensor

from byteps_thc import ThcConfig, ThcError
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.factory import collective_engine
from byteps_thc.pipeline.flat_engine import FlatEngine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.thc_engines import device_engine
from byteps_thc.transport import groups
from byteps_thc.transport.groups import open_communicator

CONFIG = ThcConfig(rotation_block=1024, error_feedback=True, down_bits=None)
POLICY = CompressionPolicy(deadline_s=120)


class KernelError(Exception):
    """As Triton's: of no other base."""


def group() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def reduce(engine: FlatEngine, key: str, names: str, *, value: float = 1.0) -> Tensor:
    size = 2000
    gradient = torch.linspace(-value, 0.5, size * len(names))
    slices = tuple(ParameterSlice(name, size * i, size * (i + 1)) for i, name in enumerate(names))
    assert engine.all_reduce(GradientBuffer(key, gradient, slices)).wait() is gradient
    return gradient


def skipped_step(_: Rank, config: ThcConfig = CONFIG) -> bool:
    """Whether residuals are as before a step that was lost before DDP rebuilt its buckets."""
    engine = make_host_device_engine(group(), config, POLICY)
    engine.protect_step()
    engine.start_step()
    for key, names in (("1", "ab"), ("2", "cd")):
        reduce(engine, key, names)
    engine.protect_step()
    before = engine.state_dict()["residuals"]
    engine.start_step()
    reduce(engine, "1", "ab", value=float("inf"))
    for key, names in (("3", "c"), ("4", "d")):
        reduce(engine, key, names)
    for _ in range(2):  # a second time it has nothing to do
        after = engine.state_dict()["residuals"]
    engine.protect_step()
    again = engine.state_dict()["residuals"]
    engine.close()
    return all(torch.equal(residual, state[name]) for name, residual in before.items() for state in (after, again))


def skipped_step_of_bfloat16(rank: Rank) -> bool:
    """The same with such residuals."""
    return skipped_step(rank, CONFIG.model_copy(update={"error_feedback": True, "residual_dtype": "bfloat16"}))


def skipped_step_of_requantized_sums(rank: Rank) -> bool:
    return skipped_step(rank, ThcConfig(rotation_block=1024, bits=5, down_bits=6, error_feedback=True))


def elsewhere(rank: Rank) -> bool:
    """Whether a gradient on another device gets its average."""
    resolved = CONFIG.resolve(rank.ranks, packed_sums=True)
    compressor = HostDeviceCompressor(resolved, workers=rank.ranks, worker=rank.rank)
    compressor.device = torch.device("cpu", 0)  # which is not the same as "cpu"
    engine = device_engine(cast(Any, compressor), POLICY, open_communicator(group(), POLICY.deadline_s))
    wanted = make_host_device_engine(group(), CONFIG, POLICY)
    averages = []
    for mine in (engine, wanted):
        mine.start_step()
        averages.append(reduce(mine, "1", "ab", value=1.0 + rank.rank))
        mine.close()
    return torch.equal(*averages) and not torch.equal(averages[0], torch.linspace(-1.0 - rank.rank, 0.5, 4000))


def kernel_fails(_: Rank) -> list[str]:
    """The errors of a buffer whose kernel fails, and of the next one."""

    class BrokenCompressor(HostDeviceCompressor):
        def pack_sums(self, *_: Tensor) -> None:
            raise KernelError("no registers")

    resolved = CONFIG.resolve(group().size(), packed_sums=True)
    compressor = BrokenCompressor(resolved, workers=group().size(), worker=group().rank())
    engine = device_engine(cast(Any, compressor), POLICY, open_communicator(group(), POLICY.deadline_s))
    errors = []
    for _ in range(2):
        engine.start_step()
        try:
            reduce(engine, "1", "ab")
        except (KernelError, ThcError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    engine.close()
    return errors


def refused(rank: Rank) -> str:
    """The error when one rank alone wants what it cannot have."""
    policy = POLICY.model_copy(update={"kernels": "device" if rank.rank == 1 else "auto"})
    try:
        collective_engine(group(), CONFIG, policy)
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
            engine = collective_engine(group(), CONFIG, POLICY.model_copy(update={"kernels": "host"}))
            engine.start_step()
            averages.append(reduce(engine, "1", "ab", value=1.0 + rank.rank))
            engine.close()
        finally:
            groups.backends = known
    return torch.equal(*averages) and not torch.equal(averages[0], torch.linspace(-1.0 - rank.rank, 0.5, 4000))


def main() -> None:
    with joined_rank() as rank:
        reports = {}
        for check in (
            skipped_step, skipped_step_of_bfloat16, skipped_step_of_requantized_sums, elsewhere, kernel_fails, refused,
            nccl_alone,
        ):  # fmt: skip
            reports[check.__name__] = check(rank)
        rank.report(reports)


if __name__ == "__main__":
    main()
