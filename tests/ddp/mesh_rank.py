"""Cases of 2 nodes x 2 ranks that average known gradients over a mesh; settings: {"servers": addresses of thc-ps}."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from error_of import error_of
from known_gradients import Block, gradients
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ParameterSynchronizer, ServerCodes, ThcReducer
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.hierarchy import exchange as mesh_factory
from byteps_thc._net.mesh import mesh_groups
from byteps_thc._scheme.decoding.settings import RankCodes
from byteps_thc.ddp import CompressionPolicy, NetworkConfig, ThcState, compress, thc_hook
from thc_lab.ranks import Rank, joined_rank

#: Sizes that two shards divide and do not divide, one that is too small to compress, and one smaller than the shards.
SHAPES = {"matrix": (37, 101), "even": (64, 64), "small": (17,), "scalar": (1,), "vector": (2049,)}
CODES = RankCodes(partition_bytes=4096)
SMALL = CompressionPolicy(bypass_elements=64, deadline_s=60)
DIMENSIONS = {"between": 2, "within": 2}


class Training:
    """A DDP model over a mesh. find_unused_parameters: DDP keeps its buckets."""

    def __init__(self, mesh: DeviceMesh, *, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        ddp_options = {"bucket_cap_mb": 0.02, "find_unused_parameters": True} | options.pop("ddp", {})
        self.dtype = dtype
        self.ddp = DistributedDataParallel(Block(SHAPES).to(dtype), **ddp_options)
        codes = {} if "network" in options else {"partition_bytes": CODES.partition_bytes}
        self.state = compress(self.ddp, levels=(mesh, "between"), **({"policy": SMALL} | codes | options))

    def step(self, own: dict[str, Tensor], scaler: Any = None) -> dict[str, Tensor]:
        self.ddp.zero_grad()
        loss = self.ddp({name: gradient.to(self.dtype) for name, gradient in own.items()})
        (loss if scaler is None else scaler.scale(loss)).backward()
        return {name: p.grad.clone() for name, p in self.ddp.module.named_parameters()}


def steps(rank: Rank, mesh: DeviceMesh, **options: Any) -> dict[str, Any]:
    training = Training(mesh, **options)
    averages = [training.step(gradients(rank.rank, step, SHAPES)) for step in range(3)]
    state, stats = training.state.state_dict(), training.state.compression_stats()
    training.state.close()
    kept = {name: state[name] for name in ("scope", "worker", "workers")}
    sizes = dict(training.state.parameter_sizes or {})
    return {"averages": averages, "sizes": sizes, "steps": stats.steps, "ratio": stats.ratio} | kept


def near_the_largest(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """float16 at its limits, and then one that is infinite on a rank."""
    training = Training(mesh, dtype=torch.float16)
    own = {name: 65504 * g.sign() for name, g in gradients(0, 0, SHAPES).items()}
    finite = training.step(own)
    if rank.rank == 3:
        own["even"][3, 3] = float("inf")
    infinite = training.step(own)
    training.state.close()
    return {"finite": finite, "infinite": infinite}


def first_dimension_fast(rank: Rank, _: DeviceMesh) -> dict[str, Any]:
    return steps(rank, init_device_mesh("cpu", (2, 2), mesh_dim_names=("within", "between")))


def other_order(rank: Rank, _: DeviceMesh) -> dict[str, Any]:
    """The second node has its ranks in another order than torch's groups."""
    return steps(rank, DeviceMesh("cpu", [[0, 1], [3, 2]], mesh_dim_names=("between", "within")))


def buffers(_: Rank, mesh: DeviceMesh) -> dict[str, Tensor]:
    """Complex numbers; no element for the second rank of a node; none at all; gaps around parameters."""
    number = float(dist.get_rank())
    spans: dict[str, list[tuple[int, int]]] = {
        "complex": [(1, 5)],
        "one": [(0, 1)],
        "none": [],
        "gaps": [(1, 4), (6, 11)],
    }
    averages = {
        "complex": torch.arange(5) * torch.tensor(number + 1j),
        "one": torch.tensor([number]),
        "none": torch.zeros(0),
        "gaps": torch.full((12,), number),
    }
    engine = ThcState(levels=(mesh, "between"), partition_bytes=4096).engine
    engine.start_step()
    for name, gradient in averages.items():
        parts = tuple(ParameterSlice(f"{name}.{start}", start, stop) for start, stop in spans[name])
        engine.all_reduce(GradientBuffer(name, gradient, parts)).wait()
    engine.close()
    return averages


def some_ranks(rank: Rank, _: DeviceMesh) -> list[str]:
    """A mesh of two ranks in front of, and behind, averages of all."""
    some = DeviceMesh("cpu", [[1], [3]], mesh_dim_names=("between", "within"))

    def average(levels: Any) -> str:
        tensor = torch.full((2000,), float(rank.rank))
        with ThcReducer(levels=levels, policy=SMALL) as reducer:
            reducer.all_reduce({"weight": tensor})
        return f"{tensor.mean():.1f}"

    calls = ["flat", (some, "between"), "flat"] if rank.rank in (1, 3) else ["flat", "flat"]
    return [average(levels) for levels in calls]


def different_levels(rank: Rank, mesh: DeviceMesh) -> dict[str, list[str]]:
    last, result = rank.rank == 3, {}
    for name, levels in {
        "flat": "flat" if last else (mesh, "between"),
        "auto": (mesh, "between") if last else "auto",
        "dim": (mesh, "within" if rank.rank > 1 else "between"),
        "refused": (mesh, "rack" if last else "between"),
    }.items():
        calls: list[Callable[[], Any]] = [
            partial(compress, DistributedDataParallel(nn.Linear(8, 8))),
            ThcState,
            ThcReducer,
        ]
        result[name] = [error_of(partial(call, levels=levels, policy=SMALL)) for call in calls]
    return result


def network_of(rank: Rank, job: int, **settings: Any) -> NetworkConfig:
    codes = ServerCodes(partition_bytes=CODES.partition_bytes)
    return NetworkConfig(rank.settings["servers"], job=job, codes=codes, **settings)


def network(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Through a parameter server: every shard is a job of its own."""
    return steps(rank, mesh, network=network_of(rank, 7))


def quorum(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Nodes that do not wait for one another may have different averages, the ranks of a node may not."""
    return steps(rank, mesh, network=network_of(rank, 17, quorum=0.5))


def flat_on_shards(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Whether the same comes out of flat engines over two ranks, to which the exact shards are given."""
    group, shard = mesh.get_group("between"), mesh.get_local_rank("within")
    names = [*SHAPES]
    starts = {}
    flat_sizes = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
    engines: dict[str, Any] = {"host": Training(mesh).state.engine, "flat": flat_engine(group, CODES, SMALL)}
    results: dict[str, list[Tensor]] = {name: [] for name in engines}
    for step in range(3):
        own = gradients(rank.rank, step, SHAPES)
        node = [gradients(mesh.get_local_rank("between") * 2 + peer, step, SHAPES) for peer in range(2)]
        whole, position = [], 0
        for name in names:
            starts[name] = position
            position += flat_sizes[name]
            whole.append(own[name].flatten())
        slices = tuple(ParameterSlice(name, starts[name], starts[name] + flat_sizes[name]) for name in names)
        buffer = GradientBuffer("bucket", torch.cat(whole), slices)
        engines["host"].start_step()
        engines["host"].all_reduce(buffer).wait()
        results["host"].append(buffer.gradient)
        results["flat"].append(flat_average(engines["flat"], node, shard))
    figures = {name: engine.statistics() for name, engine in engines.items()}
    for engine in engines.values():
        engine.close()
    return {"averages": results, "sent_bytes": {name: stats.sent_bytes for name, stats in figures.items()}}


def flat_average(engine: Any, node: list[dict[str, Tensor]], shard: int) -> Tensor:
    """The average of this rank's shard, from whole parameters and without the hierarchy's code."""
    parts, slices, position = [], [], 0
    for name in SHAPES:
        mean = ((node[0][name] + node[1][name]) / 2).flatten()
        columns = (len(mean) + 1) // 2
        mine = mean[shard * columns : (shard + 1) * columns]
        if len(mine):
            slices.append(ParameterSlice(name, position, position + len(mine)))
        parts.append(torch.cat([mine, mine.new_zeros(columns - len(mine))]))
        position += columns
    engine.start_step()
    averaged: Tensor = engine.all_reduce(
        GradientBuffer(f"bucket, shard {shard} of 2", torch.cat(parts), tuple(slices))
    ).wait()
    return torch.cat([averaged[part.start : part.stop] for part in slices])


def skipped(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """One element of one rank's gradient is not finite, which lies in one block of one shard."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    training = Training(mesh, grad_scaler=scaler)
    optimizer = torch.optim.SGD(training.ddp.parameters(), lr=0.1)

    def step(number: int, *, spoiled: bool) -> list[Tensor]:
        own = gradients(rank.rank, number, SHAPES)
        if spoiled and rank.rank == 3:
            own["matrix"].view(-1)[-1] = float("nan")
        training.step(own, scaler)
        scaler.step(optimizer)
        scaler.update()
        return [parameter.detach().clone() for parameter in training.ddp.parameters()]

    before, after, later = step(0, spoiled=False), step(1, spoiled=True), step(2, spoiled=False)
    training.state.close()
    skipped = all(map(torch.equal, before, after))
    return {"skipped": skipped, "trained later": not torch.equal(later[0], after[0]), "scale": scaler.get_scale()}


def synchronized(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """All ranks of both dimensions get the first one's parameters and optimizer state."""
    training = Training(mesh)
    model = training.ddp.module
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    synchronizer = ParameterSynchronizer(model, optimizer, compression=training.state, synchronize_every=1)
    if rank.rank != 2:
        training.ddp.zero_grad()
        model(gradients(rank.rank, 0, SHAPES)).backward()
        optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += rank.rank
    before = model.matrix.detach().clone()
    done = synchronizer.step()
    moments = [optimizer.state[p]["exp_avg"].clone() for p in model.parameters()]
    training.state.close()
    after = [p.detach().clone() for p in model.parameters()]
    return {"before": before, "after": after, "moments": moments, "done": done}


def broken_engine(_: Rank, mesh: DeviceMesh) -> str:
    """The errors of ranks when some ranks of a node have no engine."""
    groups = mesh_groups(mesh, "between", dist.group.WORLD)
    first = groups.fast.rank() == 0

    def broken(*arguments: Any) -> FlatEngine:
        if not first:
            raise OSError("no registers")
        return flat_engine(*arguments)

    mesh_factory.flat_engine = broken
    try:
        return error_of(lambda: mesh_factory.hierarchical_engine(groups, CODES, SMALL))
    finally:
        mesh_factory.flat_engine = flat_engine


def refusals(_: Rank, mesh: DeviceMesh) -> dict[str, str]:
    part = dist.new_group([0, 1])
    world = DistributedDataParallel(nn.Linear(8, 8))
    cube = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("a", "b", "c"))
    calls: dict[str, Callable[[], Any]] = {
        "1-D": lambda: compress(world, levels=(mesh["between"], "between")),
        "3-D": lambda: compress(world, levels=(cube, "a")),
        "no dim": lambda: compress(world, levels=mesh),  # type: ignore[arg-type]
        "wrong dim": lambda: ThcState(levels=(mesh, "rack")),
        "former": lambda: compress(world, dim="between"),  # type: ignore[call-arg]
        "not a mesh": lambda: compress(world, levels=("between", "between")),  # type: ignore[arg-type]
        "device": lambda: compress(world, levels=(mesh, "between"), policy=CompressionPolicy(kernels="device")),
    }
    if part is not dist.GroupMember.NON_GROUP_MEMBER:
        ddp = DistributedDataParallel(nn.Linear(8, 8), process_group=part)
        calls["other ranks"] = lambda: compress(ddp, levels=(mesh, "between"))
    result = {name: error_of(call) for name, call in calls.items()}
    state = ThcState(levels=(mesh, "between"), policy=SMALL, partition_bytes=4096)
    world.register_comm_hook(state, thc_hook)
    world(torch.ones(1, 8)).sum().backward()
    state.close()
    return result


CASES: list[Callable[[Rank, DeviceMesh], Any]] = [
    steps, near_the_largest, first_dimension_fast, other_order, buffers, some_ranks, different_levels,
    network, quorum, flat_on_shards, skipped, synchronized, broken_engine, refusals,
]  # fmt: skip


def main() -> None:
    with joined_rank() as rank:
        mesh = init_device_mesh("cpu", tuple(DIMENSIONS.values()), mesh_dim_names=tuple(DIMENSIONS))
        rank.report({case.__name__: case(rank, mesh) for case in CASES})


if __name__ == "__main__":
    main()
