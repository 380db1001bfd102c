"""Engines that compress on a device and send codes to thc-ps, the CPU's kernels standing in for the GPU's.

settings: {"servers": [address]}.
"""

from typing import Any

import torch
from host_device_compressor import take_cpu_for_device
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ServerCodes, ThcReducer
from byteps_thc._engine.door import Worker, open_engine
from byteps_thc._engine.engine import Engine, GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.servers import NetworkConfig
from byteps_thc.ddp import compress
from byteps_thc.fsdp import compress_replicas
from thc_lab.ranks import Rank, default_group, joined_rank

CODES = ServerCodes(rotation_block=1024, partition_bytes=1 << 14, error_feedback=True)
POLICY = CompressionPolicy(bypass_elements=0, deadline_s=60)
KERNELS = ("host", "device")
SIZE = 2000
COPIED = 32000  # bytes of a buffer of four parameters


def policy_of(kind: str) -> CompressionPolicy:
    return POLICY.model_copy(update={"kernels": kind})


def network_of(rank: Rank, job: int) -> NetworkConfig:
    return NetworkConfig(rank.settings["servers"], job=job, codes=CODES)


def engine_on(rank: Rank, kind: str, job: int) -> Engine:
    return flat_engine(default_group(), network_of(rank, job), policy_of(kind))


def reduce(engine: Engine, key: str, names: str, *, value: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    gradient = torch.linspace(-value, 0.5, SIZE * len(names)).to(dtype)
    slices = tuple(ParameterSlice(name, SIZE * i, SIZE * (i + 1)) for i, name in enumerate(names))
    assert engine.all_reduce(GradientBuffer(key, gradient, slices)).wait() is gradient
    return gradient


def same_states(first: Engine, second: Engine) -> bool:
    one, other = first.state_dict(), second.state_dict()
    return all(torch.equal(residual, other["residuals"][name]) for name, residual in one["residuals"].items()) and (
        one["checksums"] == other["checksums"]
    )


def skipped_steps(rank: Rank) -> dict[str, bool]:
    """A step that is not finite on rank 1, the next one with half the loss scale, and other buckets after that."""
    engines = [engine_on(rank, kind, 1 + number) for number, kind in enumerate(KERNELS)]
    result = {}
    averages: list[list[Tensor]] = [[], []]
    for number, engine in enumerate(engines):
        for step in range(3):
            engine.protect_step()
            engine.start_step()
            broken = float("inf") if step == 1 and rank.rank == 1 else 1.0 + rank.rank
            averages[number] += [reduce(engine, "1", "ab", value=broken), reduce(engine, "2", "cd")]
            if step == 0:
                before = engine.state_dict()["residuals"]
            elif step == 1:
                after = engine.state_dict()["residuals"]
                result[f"residuals stay, {KERNELS[number]}"] = all(
                    torch.equal(after[name], before[name]) for name in before
                )
                engine.scale_residuals(0.5)
        engine.start_step()
        averages[number] += [reduce(engine, "3", "c"), reduce(engine, "4", "dab")]
        engine.protect_step()
    result["averages"] = all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(*averages, strict=True))
    result["averages of the broken step"] = bool(averages[1][2].isnan().any())
    result["states"] = same_states(*engines)
    figures = [engine.statistics() for engine in engines]
    result["figures"] = figures[0].clamped_fraction == figures[1].clamped_fraction and (
        abs(figures[0].residual_norm - figures[1].residual_norm) <= 1e-4 * figures[0].residual_norm
    )
    for engine in engines:
        engine.close()
    return result


def checkpoints(rank: Rank) -> list[bool]:
    """Each engine resumes with the state of the other."""
    first = [engine_on(rank, kind, 11 + number) for number, kind in enumerate(KERNELS)]
    for engine in first:
        engine.start_step()
        reduce(engine, "1", "abc", value=1.0 + rank.rank)
    states = [engine.state_dict() for engine in first]
    second = [engine_on(rank, kind, 13 + number) for number, kind in enumerate(KERNELS)]
    averages = []
    for engine, state in zip(second, reversed(states), strict=True):
        engine.load_state_dict(state)
        engine.start_step()
        averages.append(reduce(engine, "1", "abc", value=2.0 + rank.rank))
    same = [torch.equal(*averages), same_states(*second)]
    for engine in (*first, *second):
        engine.close()
    return same


def elsewhere(rank: Rank) -> list[Any]:
    """A gradient on another device is copied there and back; exact parameters, too."""
    take_cpu_for_device(torch.device("cpu", 0))  # which is not the same as "cpu"
    results = []
    for number, kind in enumerate(KERNELS):
        engine = engine_on(rank, kind, 21 + number)
        engine.start_step()
        results.append(reduce(engine, "1", "abcd", value=1.0 + rank.rank))
        figures = engine.statistics()
        engine.close()
    take_cpu_for_device()
    whole = figures.to_device_bytes >= COPIED <= figures.to_host_bytes
    return [torch.equal(*results), whole]


def front_ends(rank: Rank) -> dict[str, bool]:
    """DDP, HSDP and ThcReducer with and without a process group: on the device as in host memory, and no fp32 there."""
    result = {}
    for number, average in enumerate((ddp, hsdp, reducer, reducer_alone)):
        averages, copies = zip(
            *(average(rank, kind, 50 + 2 * number + i) for i, kind in enumerate(KERNELS)), strict=True
        )
        same = all(torch.equal(mine, wanted) for mine, wanted in zip(*averages, strict=True))
        result[average.__name__] = same and copies[0] == 0 and 1.5 < copies[1] < 1.7
    return result


def copied(figures: Any) -> float:
    return (figures.to_host_bytes + figures.to_device_bytes) / max(figures.coordinates, 1)


def ddp(rank: Rank, kind: str, job: int) -> tuple[list[Tensor], float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(256, 256))
    state = compress(model, network=network_of(rank, job), policy=policy_of(kind))
    torch.manual_seed(rank.rank + 1)
    for _ in range(2):
        model(torch.randn(8, 256)).square().mean().backward()
    figures = state.compression_stats()
    state.close()
    return [parameter.grad for parameter in model.parameters()], copied(figures)


def hsdp(rank: Rank, kind: str, job: int) -> tuple[list[Tensor], float]:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (rank.ranks, 1), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(nn.Linear(256, 256), mesh=mesh["shard"])
    handle = compress_replicas(model, mesh["replicate"], network=network_of(rank, job), policy=policy_of(kind))
    torch.manual_seed(rank.rank + 1)
    for _ in range(2):
        model(torch.randn(8, 256)).square().mean().backward()
    figures = handle.compression_stats()
    handle.close()
    return [parameter.grad.to_local() for parameter in model.parameters()], copied(figures)


def averages_of(rank: Rank, made: ThcReducer) -> tuple[list[Tensor], float]:
    random = torch.Generator().manual_seed(rank.rank)
    tensors = {"a": torch.randn(50, 100, generator=random), "b": torch.randn(9000, generator=random)}
    with made:
        for _ in range(2):
            made.all_reduce(tensors)
        figures = made.compression_stats()
    return list(tensors.values()), copied(figures)


def reducer(rank: Rank, kind: str, job: int) -> tuple[list[Tensor], float]:
    return averages_of(rank, ThcReducer(network_of(rank, job), policy=policy_of(kind)))


def reducer_alone(rank: Rank, kind: str, job: int) -> tuple[list[Tensor], float]:
    """The engine of a ThcReducer that has no process group."""
    engine = open_engine(Worker(rank.rank, rank.ranks), None, network_of(rank, job), policy_of(kind)).engine
    averages = []
    for step in range(2):
        engine.start_step()
        averages.append(reduce(engine, "1", "abcd", value=1.0 + rank.rank + step, dtype=torch.bfloat16))
    figures = engine.statistics()
    engine.close()
    return averages, copied(figures)


with joined_rank() as rank:
    take_cpu_for_device()
    rank.report({check.__name__: check(rank) for check in (skipped_steps, checkpoints, elsewhere, front_ends)})
