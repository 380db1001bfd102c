"""A rank of which one average gets a wrong bit: on the last rank, in step 1 of 0, 1, 2.

settings: {"routes": names of ROUTES}. Reports the number of the step that failed and its error, by route. Four ranks
report errors of steps in a recorded CUDA graph, too.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from error_of import error_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcReducer
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine import flat_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.hierarchy import engine as node_engine
from byteps_thc._own_loop import thc_reducer
from byteps_thc._scheme.decoding.codec import Messages, RankCodec
from byteps_thc.ddp import compress
from byteps_thc.ddp import state as ddp_state
from byteps_thc.fsdp import compress_all_gather, compress_reduce_scatter, compress_replicas, compressed_reduce_scatter
from byteps_thc.fsdp import replicas as fsdp_replicas
from thc_lab.ranks import Rank, joined_rank

Step = Callable[[], Any]


@contextmanager
def wrong_bit(method: str, wrong: int) -> Iterator[None]:
    """Change a bit of the input of a call of RankCodec's method: of a code, else of an exact value."""
    decode, calls = getattr(RankCodec, method), itertools.count()

    def changed(codec: RankCodec, shards: Any, messages: Messages, *others: Any) -> int:
        if next(calls) == wrong:
            (messages.codes if messages.codes.size else messages.exact.view("u1"))[0, 0] ^= 1
        total: int = decode(codec, shards, messages, *others)
        return total

    with patch.object(RankCodec, method, changed):
        yield


def backward(model: nn.Module) -> Step:
    return lambda: model(torch.ones(4, 128)).square().mean().backward()


def ddp(**levels: Any) -> Step:
    model = DistributedDataParallel(nn.Linear(128, 128))  # the bias travels exactly
    compress(model, **levels)
    return backward(model)


def levels() -> Step:
    return ddp(levels=(init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within")), "between"))


def reducer() -> Step:
    handle = ThcReducer()
    return lambda: handle.all_reduce({"tensor": torch.ones(5000), "small": torch.ones(9)})


def replicas() -> Step:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(nn.Linear(128, 128), mesh=mesh["shard"])
    compress_replicas(model, mesh["replicate"])
    return backward(model)


def scatters() -> Step:
    model = fully_shard(nn.Linear(128, 128))
    compress_reduce_scatter(model)
    return backward(model)


def gathers() -> Step:
    model = fully_shard(nn.Linear(128, 128))
    compress_all_gather(model)
    return backward(model)


ROUTES: dict[str, Callable[[], Step]] = {
    route.__name__: route for route in (ddp, levels, reducer, replicas, scatters, gathers)
}


#: Modules that look at a gradient before others do, and a route of theirs.
RECORDING: list[tuple[str, ModuleType]] = [
    ("ddp", ddp_state),
    ("ddp", flat_engine),
    ("levels", node_engine),
    ("reducer", thc_reducer),
    ("scatters", compressed_reduce_scatter),
    ("scatters", flat_engine),
    ("replicas", fsdp_replicas),
]


def recorded(route: str, module: ModuleType) -> str:
    """Return the error of a step if the module finds a CUDA graph that is recorded. A front end begins no step then."""
    step, begins = ROUTES[route](), module in (flat_engine, node_engine)
    with patch.object(module, "require_not_captured", side_effect=ConfigurationError("recorded")), ExitStack() as stack:
        if not begins:
            stack.enter_context(patch.object(FlatEngine, "start_step", side_effect=AssertionError("a step began")))
        return error_of(step)


def outcome(rank: Rank, route: str) -> list[Any]:
    step = ROUTES[route]()
    # A gather decodes every rank's shard by a call.
    method, wrong = ("average", rank.ranks) if route == "gathers" else ("decode", 1)
    with wrong_bit(method, wrong if rank.rank == rank.ranks - 1 else -1):
        for number in range(3):
            try:
                step()
            except Exception as error:
                return [number, f"{type(error).__name__}: {error}"]
    return [3, ""]


with joined_rank() as rank:
    refused = [recorded(*each) for each in RECORDING] if rank.ranks == 4 else []
    rank.report({"routes": {route: outcome(rank, route) for route in rank.settings["routes"]}, "recorded": refused})
