"""A rank that loads damaged states into every front end; settings: server, the address of a thc-ps.

Reports for each the error, and whether the state is as before; and whether the front end still averages at last.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from known_gradients import all_shapes, gradients, sharded_model
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import NetworkConfig, ServerCodes, ThcReducer
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import sealed
from byteps_thc.ddp import compress
from byteps_thc.fsdp import compress_reduce_scatter, compress_replicas
from thc_lab.ranks import Rank, joined_rank

POLICY = CompressionPolicy(bypass_elements=64, deadline_s=60)
State = dict[str, Any]


def ddp(rank: Rank, *, server: bool = False) -> tuple[Any, Callable[[], None]]:
    model = DistributedDataParallel(nn.Linear(30, 40))
    codes = ServerCodes(error_feedback=True)
    network = NetworkConfig([rank.settings["server"]], codes=codes) if server else None
    handle = compress(model, policy=POLICY, network=network)
    return handle, lambda: model(torch.randn(8, 30)).square().mean().backward()


def reducer(_: Rank) -> tuple[Any, Callable[[], None]]:
    averages = ThcReducer(policy=POLICY)
    return averages, lambda: averages.all_reduce({"first": torch.randn(500), "second": torch.randn(700)})


def fsdp(_: Rank) -> tuple[Any, Callable[[], None]]:
    model = sharded_model(init_device_mesh("cpu", (2,)))
    handle = compress_reduce_scatter(model, policy=POLICY)
    return handle, lambda: model(gradients(dist.get_rank(), 0, all_shapes())).backward()


def hsdp(_: Rank) -> tuple[Any, Callable[[], None]]:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = sharded_model(mesh["shard"])
    handle = compress_replicas(model, mesh["replicate"], policy=POLICY)
    return handle, lambda: model(gradients(dist.get_rank(), 0, all_shapes())).backward()


FRONT_ENDS = {"ddp": ddp, "ddp server": partial(ddp, server=True), "reducer": reducer, "fsdp": fsdp, "hsdp": hsdp}


def residual(change: Callable[[Tensor], Any], *, seal: bool = False) -> Callable[[State], State]:
    """The residual of the weight is something else. seal: with right checksums."""

    def damaged(state: State) -> State:
        name = "weight"
        wrong = state | {"residuals": state["residuals"] | {name: change(state["residuals"][name].clone())}}
        return sealed(wrong) if seal else wrong

    return damaged


def filled(value: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.index_fill_(0, torch.tensor([3]), value)


def flip(tensor: Tensor) -> Tensor:
    tensor.view(torch.int32)[7] ^= 1
    return tensor


def without(key: str) -> Callable[[State], State]:
    return lambda state: {name: value for name, value in state.items() if name != key}


#: Damages of a state with residuals.
OF_RESIDUALS: dict[str, Callable[[State], Any]] = {
    "truncated, sealed": residual(lambda tensor: tensor[:-1], seal=True),
    "no elements, sealed": residual(lambda tensor: tensor[:0], seal=True),
    "longer, sealed": residual(lambda tensor: torch.cat([tensor, tensor]), seal=True),
    "nan": residual(filled(math.nan)),
    "infinite": residual(filled(-math.inf)),
    "enormous": residual(filled(-1e30)),
    "a bit": residual(flip),
    "a name gone": lambda state: state | {"residuals": {"bias": state["residuals"]["bias"]}},
    "a name that is none": lambda state: state | {"residuals": {7: torch.zeros(5)}},
    "residuals gone": without("residuals"),
    "residuals no mapping": lambda state: state | {"residuals": [torch.zeros(5)]},
    "unknown name": lambda state: sealed(state | {"residuals": state["residuals"] | {"stranger": torch.zeros(5)}}),
}


def of_others(sizes: dict[str, int]) -> dict[str, Callable[[State], Any]]:
    """States that somebody else has saved, for one without residuals. sizes: of the parameters."""
    residuals = {name: torch.ones(size) for name, size in sizes.items()}
    return {
        "residuals of servers": lambda state: sealed(state | {"residuals": residuals}),
        "more settings": lambda state: sealed(state | {"config": state["config"] | {"p": "auto"}}),
        "other bits": lambda state: sealed(state | {"config": state["config"] | {"bits": 3}}),
    }


DAMAGES: dict[str, Callable[[State], Any]] = {
    "empty": lambda _: {},
    "none": lambda _: None,
    "list": lambda state: list(state.items()),
    "checksums gone": without("checksums"),
    "checksums no mapping": lambda state: state | {"checksums": 7},
    "version gone": lambda state: sealed(without("version")(state)),
    "another version": lambda state: sealed(state | {"version": 2, "config": {"rotation_block": 8192}}),
    "another round": lambda state: state | {"round": state["round"] + 1},
    "a step that is none": lambda state: sealed(state | {"step": True}),
    "an enormous step": lambda state: sealed(state | {"step": 1 << 40}),
    "another worker": lambda state: sealed(state | {"worker": 1 - state["worker"]}),
    "another config": lambda state: sealed(state | {"config": {}}),
    "loss scale nan": lambda state: sealed(state | {"loss_scale": math.nan}),
    "loss scale 0": lambda state: sealed(state | {"loss_scale": 0.0}),
}


def same(one: State, other: State) -> bool:
    residuals, others = (state.get("residuals", {}) for state in (one, other))
    return (
        one["checksums"] == other["checksums"]
        and residuals.keys() == others.keys()
        and all(torch.equal(residual, others[name]) for name, residual in residuals.items())
    )


def run(rank: Rank, make: Callable[[Rank], tuple[Any, Callable[[], None]]]) -> dict[str, Any]:
    handle, step = make(rank)
    for _ in range(3):  # DDP rebuilds its buckets after the first
        step()
    saved = handle.state_dict()
    step()
    before = handle.state_dict()
    report: dict[str, Any] = {}
    others = OF_RESIDUALS if "residuals" in saved else of_others(dict(handle.parameter_sizes or {}))
    for name, damage in (DAMAGES | others).items():
        try:
            handle.load_state_dict(damage(saved))
            error = ""
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        report[name] = (error, same(handle.state_dict(), before))
    handle.load_state_dict(saved)
    report["as saved"] = same(handle.state_dict(), saved)
    step()
    report["residuals"] = len(before.get("residuals", {}))
    handle.close()
    return report


torch.set_num_threads(1)
with joined_rank() as rank:
    rank.report({name: run(rank, make) for name, make in FRONT_ENDS.items()})
