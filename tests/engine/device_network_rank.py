"""A rank of engines that compress on a device and send codes to thc-ps, the CPU's kernels standing in for the GPU's.

settings: {"servers": [address], "victim": [address, pid] of a thc-ps that rank 0 ends}. Reports what
test_device_network.py checks.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from host_device_compressor import take_cpu_for_device
from ranks import Rank, joined_rank
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from twin_compressors import add_twins

from byteps_thc import ThcConfig, ThcError, ThcReducer
from byteps_thc._engine.door import Worker, open_engine
from byteps_thc._engine.engine import Engine, GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._net.session import FaultConfig, Timeouts
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc.ddp import compress
from byteps_thc.fsdp import compress_replicas

CONFIG = ThcConfig(rotation_block=1024, partition_bytes=1 << 14, error_feedback=True)
POLICY = CompressionPolicy(bypass_elements=0, deadline_s=60)
KERNELS = ("host", "device")
SIZE = 2000
COPIED = 32000  # bytes of a buffer of four parameters


def group() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def policy_of(kind: str) -> CompressionPolicy:
    return POLICY.model_copy(update={"kernels": kind})


def engine_on(rank: Rank, kind: str, job: int, **network: Any) -> Engine:
    servers = network.pop("servers", rank.settings["servers"])
    return flat_engine(group(), CONFIG, policy_of(kind), NetworkConfig(servers, job=job, **network))


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
    """Each engine goes on with the state of the other."""
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
    """A gradient on another device is copied there and back; also what is exact."""
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


def dead_server(rank: Rank) -> list[str]:
    """The errors of the buffer that is on its way, and of the next one."""
    address, pid = rank.settings["victim"]
    engine = engine_on(rank, "device", 1, servers=[address], timeouts=Timeouts(operation_s=4.0))
    engine.start_step()
    reduce(engine, "1", "ab")
    dist.barrier()
    if rank.rank == 0:
        os.kill(pid, signal.SIGKILL)
    dist.barrier()
    errors = []
    for _ in range(2):
        try:
            reduce(engine, "1", "ab")
        except ThcError as error:
            errors.append(f"{type(error).__name__}: {error}")
    engine.close()
    return errors


def losses(rank: Rank, job: int, **network: Any) -> dict[str, Any]:
    """With twins in host memory (the caller's): the same bits, whoever is missing from a sum."""
    engine = engine_on(rank, "device", job, timeouts=Timeouts(loss_s=0.05), **network)
    for step in range(6):
        engine.start_step()
        reduce(engine, "1", "abcdefgh", value=1.0 + rank.rank + step)
    figures = engine.statistics()
    dist.barrier()
    engine.close()
    return {"missing": figures.missing_contributions}


def refused(rank: Rank) -> str:
    """The error when one rank alone wants what it cannot have: blocks that are too large for the kernels."""
    config = CONFIG.model_copy(update={"rotation_block": 32768})
    policy = policy_of("device" if rank.rank == 1 else "auto")
    try:
        flat_engine(group(), config, policy, NetworkConfig(rank.settings["servers"], job=40))
    except ConfigurationError as error:
        return str(error)
    return ""


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
    network = NetworkConfig(rank.settings["servers"], job=job)
    state = compress(model, CONFIG, network=network, policy=policy_of(kind))
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
    network = NetworkConfig(rank.settings["servers"], job=job)
    handle = compress_replicas(model, mesh["replicate"], CONFIG, network=network, policy=policy_of(kind))
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
    return averages_of(
        rank, ThcReducer(NetworkConfig(rank.settings["servers"], job=job), CONFIG, policy=policy_of(kind))
    )


def reducer_alone(rank: Rank, kind: str, job: int) -> tuple[list[Tensor], float]:
    """The engine of a ThcReducer that has no process group."""
    network = NetworkConfig(rank.settings["servers"], job=job)
    engine = open_engine(Worker(rank.rank, rank.ranks), None, network, CONFIG, policy_of(kind)).engine
    averages = []
    for step in range(2):
        engine.start_step()
        averages.append(reduce(engine, "1", "abcd", value=1.0 + rank.rank + step, dtype=torch.bfloat16))
    figures = engine.statistics()
    engine.close()
    return averages, copied(figures)


def main() -> None:
    with joined_rank() as rank:
        reports: dict[str, Any] = {"refused": refused(rank)}
        take_cpu_for_device()
        for check in (skipped_steps, checkpoints, elsewhere, front_ends):
            reports[check.__name__] = check(rank)
        reports["dead server"] = dead_server(rank)
        twins = add_twins()
        reports["lost packets"] = losses(rank, 31, loss_tolerant=True, faults=FaultConfig(drop=0.2))
        reports["quorum"] = losses(rank, 32, quorum=1)
        for name, twin in zip(("lost packets", "quorum"), twins, strict=True):
            reports[name]["contributions"] = sorted(twin.contributions)
        rank.report(reports)


if __name__ == "__main__":
    main()
