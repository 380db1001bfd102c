"""A rank whose state is saved and loaded as frameworks do it: state_dict() of all ranks, a file by rank 0, load by all.

settings: servers (address of a thc-ps). Reports residuals, step and the error of a state of one rank.
The reducer averages through a server, with residuals, or among ranks, with counters alone.
"""

from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from error_of import error_of
from torch import Tensor

from byteps_thc import CompressionPolicy, NetworkConfig, ServerCodes, ThcReducer
from byteps_thc.checkpoint import gathered
from thc_lab.ranks import Rank, joined_rank

POLICY = CompressionPolicy(bypass_elements=16)


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


def save(registered: Stateful, file: Path) -> None:
    """Save as Accelerate's save_state() saves registered objects, and Lightning the states of callbacks."""
    state = registered.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, file)
    dist.barrier()


def load(registered: Stateful, file: Path) -> None:
    registered.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))


def new_reducer(rank: Rank, where: str, job: int) -> ThcReducer:
    if where == "ranks":
        return ThcReducer(None, policy=POLICY)
    codes = ServerCodes(rotation_block=128, error_feedback=True)
    return ThcReducer(NetworkConfig(rank.settings["servers"], job=job, codes=codes), policy=POLICY)


def train(reducer: ThcReducer, rank: Rank, steps: int) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + rank.rank)
        reducer.all_reduce({"w": torch.randn(1001, generator=generator), "b": torch.randn(40, generator=generator)})


def kept(reducer: ThcReducer) -> dict[str, Tensor]:
    state = reducer.state_dict()
    return {**state.get("residuals", {}), "round": torch.tensor(state["round"])}


with joined_rank() as rank:
    result: dict[str, Any] = {}
    for where in ("ranks", "server"):
        file = rank.directory / f"{where}.pt"
        reducer = new_reducer(rank, where, 1)
        train(reducer, rank, 3)
        save(gathered(reducer), file)
        result[f"saved {where}"] = kept(reducer)
        save(reducer, rank.directory / "one.pt")
        result["everywhere"] = sorted(gathered(reducer, everywhere=True).state_dict())
        result["elsewhere"] = sorted(gathered(reducer).state_dict())
        again = new_reducer(rank, where, 2)
        load(gathered(again), file)
        result[f"loaded {where}"] = kept(again)
        result["one"] = error_of(lambda state=again: load(state, rank.directory / "one.pt"))
        result["one into gathered"] = error_of(lambda state=again: load(gathered(state), rank.directory / "one.pt"))
        result["untouched"] = all(now.equal(kept(again)[name]) for name, now in result[f"loaded {where}"].items())
        for each in (reducer, again):
            each.close()
    rank.report(result)
