"""A rank whose state is saved and loaded as frameworks do it: state_dict() of all ranks, a file by rank 0, load by all.

settings: server (address of a thc-ps), folder, save. Reports residuals, step and what was said of a state of one rank.
The reducer averages through a server, with residuals, or among ranks, with counters alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch import Tensor

from byteps_thc import CompressionPolicy, NetworkConfig, ThcConfig, ThcReducer
from byteps_thc._scheme.errors import CheckpointError, ConfigurationError
from byteps_thc.checkpoint import gathered

POLICY = CompressionPolicy(bypass_elements=16)


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


def save(registered: Stateful, file: Path) -> None:
    """As Accelerate's save_state() saves what is registered, and Lightning what callbacks return."""
    state = registered.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, file)
    dist.barrier()


def load(registered: Stateful, file: Path) -> None:
    registered.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))


def new_reducer(rank: Rank, where: str, job: int) -> ThcReducer:
    if where == "ranks":
        return ThcReducer(None, policy=POLICY)
    network = NetworkConfig([rank.settings["server"]], job=job)
    return ThcReducer(network, ThcConfig(rotation_block=128, error_feedback=True), policy=POLICY)


def train(reducer: ThcReducer, rank: Rank, steps: int) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + rank.rank)
        reducer.all_reduce({"w": torch.randn(1001, generator=generator), "b": torch.randn(40, generator=generator)})


def told(call: Any) -> str:
    try:
        call()
    except (ConfigurationError, CheckpointError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def kept(reducer: ThcReducer) -> dict[str, Tensor]:
    state = reducer.state_dict()
    return {**state.get("residuals", {}), "round": torch.tensor(state["round"])}


def main() -> None:
    with joined_rank() as rank:
        result: dict[str, Any] = {}
        folder = Path(rank.settings["folder"])
        for where in ("ranks", "server"):
            file = folder / f"{where}.pt"
            reducer = new_reducer(rank, where, 1)
            if rank.settings["save"]:
                train(reducer, rank, 3)
                save(gathered(reducer), file)
                result[f"saved {where}"] = kept(reducer)
                save(reducer, folder / "one.pt")
                result["everywhere"] = sorted(gathered(reducer, everywhere=True).state_dict())
                result["elsewhere"] = sorted(gathered(reducer).state_dict())
            again = new_reducer(rank, where, 2)
            load(gathered(again), file)
            result[f"loaded {where}"] = kept(again)
            result["one"] = told(lambda state=again: load(state, folder / "one.pt"))
            result["one into gathered"] = told(lambda state=again: load(gathered(state), folder / "one.pt"))
            result["untouched"] = all(now.equal(kept(again)[name]) for name, now in result[f"loaded {where}"].items())
            for each in (reducer, again):
                each.close()
        rank.report(result)


if __name__ == "__main__":
    main()
