"""A rank whose node is found. settings: {"case": name of a function here, "nodes": a node's name for each rank}."""

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from error_of import error_of
from log_lines import log_lines
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import byteps_thc._engine.door
import byteps_thc._engine.levels
from byteps_thc.checkpoint import checkpointable, load
from byteps_thc.ddp import ThcState, compress
from thc_lab.ranks import Rank, joined_rank

MEASURE = byteps_thc._engine.levels.time_both_ways
calls = 0


def placed(rank: Rank, nodes: list[str]) -> None:
    """Let this rank be on that node, where two levels are fast."""
    byteps_thc._engine.levels.node_identity = lambda: nodes[rank.rank]  # type: ignore[attr-defined]
    measuring(lambda *_: (0.1, 0.2))


def measuring(measure: Callable[..., tuple[float, float]]) -> None:
    """Let that measure both ways, and count how often it does."""

    def counting(*arguments: Any) -> tuple[float, float]:
        global calls
        calls += 1
        return measure(*arguments)

    byteps_thc._engine.levels.time_both_ways = counting


def model() -> DistributedDataParallel:
    torch.manual_seed(1)
    return DistributedDataParallel(nn.Sequential(nn.Linear(100, 80), nn.Linear(80, 50)))


def averages(rank: Rank, steps: int = 2, **options: Any) -> dict[str, Any]:
    ddp = model()
    with log_lines() as lines:
        state = compress(ddp, **options)
    gradients = []
    for step in range(steps):
        torch.manual_seed(100 * step + rank.rank)
        ddp.zero_grad()
        ddp(torch.randn(8, 100)).square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in ddp.parameters() if p.grad is not None]))
    result = {"averages": torch.stack(gradients), "scope": state.state_dict().get("scope")}
    result |= {"lines": lines, "said": repr(state), "sizes": dict(state.parameter_sizes or {})}
    result["sent"] = state.compression_stats().sent_bytes
    state.close()
    result["closed"] = repr(state)
    return result


def one_way(rank: Rank) -> dict[str, Any]:
    """Nodes that are found and a mesh of the same ranks; and one level."""
    names = rank.settings["nodes"]
    nodes = [[r for r in range(rank.ranks) if names[r] == name] for name in dict.fromkeys(names)]
    mesh = DeviceMesh("cpu", torch.tensor(nodes), mesh_dim_names=("between", "within"))
    return {
        "found": averages(rank),
        "mesh": averages(rank, levels=(mesh, "between")),
        "flat": averages(rank, levels="flat"),
    }


def uneven(rank: Rank) -> dict[str, Any]:
    """The second time nothing is said that was said before."""
    return {"auto": averages(rank), "again": averages(rank), "flat": averages(rank, levels="flat")} | {"calls": calls}


def measured(rank: Rank) -> dict[str, Any]:
    """Ways that take other times on each rank, at last with measured times."""
    result: dict[str, Any] = {"calls": {}}
    ways: dict[str, tuple[list[float], list[float], dict[str, Any]]] = {
        "slow levels": ([0.1, 0.4, 0.1, 0.1], [0.2, 0.2, 0.2, 0.3], {}),
        "fast levels": ([0.1, 0.4, 0.1, 0.1], [0.2, 0.2, 0.2, 0.5], {}),
        "flat": ([0.1] * 4, [1.0] * 4, {"levels": "flat"}),
    }
    ask = byteps_thc._engine.levels.seconds_of_exchange
    byteps_thc._engine.levels.seconds_of_exchange = lambda _: 1e-3  # a loaded host takes longer
    for name, (two_levels, flat, options) in ways.items():
        before = calls
        mine = two_levels[rank.rank], flat[rank.rank]
        measuring(lambda *_, mine=mine: mine)  # type: ignore[misc]
        result[name] = averages(rank, **options)
        result["calls"][name] = calls - before
    measuring(MEASURE)
    result["real"] = averages(rank)
    byteps_thc._engine.levels.seconds_of_exchange = lambda _: 0.2  # as 100 ms of round trip take
    before = calls
    result["far"] = averages(rank)
    result["calls"]["far"] = calls - before
    byteps_thc._engine.levels.seconds_of_exchange = ask
    return result


def loading(rank: Rank) -> dict[str, Any]:
    """States of one level where ranks average in two, and the other way round."""
    two, flat = compress(model()), compress(model(), levels="flat")
    states: list[Any] = [None] * rank.ranks
    dist.all_gather_object(states, two.state_dict())
    result = {
        "flat state": error_of(lambda: two.load_state_dict(flat.state_dict())),
        "node's state": error_of(lambda: flat.load_state_dict(two.state_dict())),
        "neighbour's state": error_of(lambda: two.load_state_dict(states[rank.rank ^ 1])),
        "own state": error_of(lambda: two.load_state_dict(two.state_dict())),
    }
    for state in (two, flat):
        state.close()
    return result


def trained(rank: Rank, group: Any, steps: int) -> ThcState:
    torch.manual_seed(1)
    ddp = DistributedDataParallel(nn.Linear(100, 80), process_group=group)
    state = compress(ddp)
    for step in range(steps):
        torch.manual_seed(100 * step + rank.rank)
        ddp(torch.randn(8, 100)).square().mean().backward()
    return state


def subgroups(rank: Rank) -> dict[str, Any]:
    """Two stages of two nodes of two ranks: each loads its own checkpoint."""
    stage = rank.rank // 4
    groups = [dist.new_group(list(range(first, first + 4))) for first in (0, 4)]
    folder, scope = rank.directory / "checkpoint", f"stage{stage}"
    old, new = (trained(rank, groups[stage], steps) for steps in (2, 0))
    unnamed = error_of(lambda: checkpointable(old).state_dict())
    dcp.save({"thc": checkpointable(old, scope=scope)}, checkpoint_id=folder)
    loaded = error_of(lambda: load(new, folder, scope=scope))
    by_dcp = error_of(lambda: dcp.load({"thc": checkpointable(old, scope=scope)}, checkpoint_id=folder))
    result = {"unnamed": unnamed, "loaded": loaded, "by dcp": by_dcp}
    result |= {"saved": old.state_dict(), "now": new.state_dict()}
    old.close()
    new.close()
    return result


def refused(rank: Rank) -> dict[str, str]:
    ddp = model()
    return {
        "differ": error_of(lambda: compress(ddp, levels="flat" if rank.rank else "auto")),
        "unknown": error_of(lambda: compress(ddp, levels="racks")),  # type: ignore[arg-type]
        "bits": error_of(lambda: compress(ddp, bits=4 if rank.rank else 3)),
    }


CASES: dict[str, Callable[[Rank], Any]] = {
    case.__name__: case for case in (one_way, uneven, measured, loading, subgroups, refused)
}

with joined_rank() as rank:
    logging.getLogger("byteps_thc").setLevel(logging.INFO)
    placed(rank, rank.settings["nodes"])
    rank.report(CASES[rank.settings["case"]](rank))
