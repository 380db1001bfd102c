"""Two ranks: one in turn cannot begin, then both can. settings: {"other_version"}: rank 1 has other random keys."""

import types
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcError, ThcReducer
from byteps_thc._scheme import shares
from byteps_thc.ddp import ThcState, compress
from byteps_thc.fsdp import compress_all_gather, compress_reduce_scatter, compress_replicas
from thc_lab.ranks import joined_rank


def reduced(**wrong: Any) -> None:
    with ThcReducer(**wrong) as reducer:
        reducer.all_reduce({"weight": torch.ones(2000)})


def said(call: Callable[..., Any], **arguments: Any) -> str:
    try:
        made = call(**arguments)
    except ThcError as error:
        return f"{type(error).__name__}: {error}"
    if made is not None:
        made.close()
    return "nothing"


def main() -> None:
    with joined_rank() as rank:
        ddp, sharded = DistributedDataParallel(nn.Linear(40, 40)), fully_shard(nn.Linear(40, 40))
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        hybrid = fully_shard(nn.Linear(40, 40), mesh=mesh["shard"])
        calls: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
            "state": (lambda **wrong: ThcState(**wrong), {"levels": "racks"}),
            "reducer": (reduced, {"workers": 2}),
            "fsdp": (lambda **wrong: compress_reduce_scatter(sharded, **wrong), {"policy": 5}),
            "hsdp": (lambda **wrong: compress_replicas(hybrid, mesh["replicate"], **wrong), {"log_every": -1}),
            "gathers": (lambda **wrong: compress_all_gather(sharded, **wrong), {"bits": 99}),
            "compress": (lambda **wrong: compress(ddp, **wrong), {"bits": 99}),
        }
        if rank.settings.get("other_version"):
            if rank.rank == 1:
                vars(shares).update(zlib=types.SimpleNamespace(crc32=lambda data: zlib.crc32(data) ^ 1))
            levels = {"levels": (mesh, "replicate")}
            calls["levels"] = lambda **settings: compress(ddp, **settings), {}
            rank.report({name: said(call, **(levels if name == "levels" else {})) for name, (call, _) in calls.items()})
            return
        result = {}
        for number, (name, (call, wrong)) in enumerate(calls.items()):
            result[name] = [said(call, **(wrong if rank.rank == number % 2 else {})), said(call)]
        rank.report(result)


if __name__ == "__main__":
    main()
