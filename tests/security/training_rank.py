"""A rank of a training that averages through thc-ps: reports the average, or the error."""

from typing import Any

import torch

from byteps_thc import NetworkConfig, ThcError, ThcReducer
from thc_lab.ranks import Rank, joined_rank


def average(rank: Rank) -> dict[str, Any]:
    network = NetworkConfig(rank.settings["servers"], job=1, **rank.settings["told"][rank.rank])
    tensor = torch.full((5000,), 1.0 + rank.rank)
    try:
        with ThcReducer(network) as reducer:
            reducer.all_reduce({"tensor": tensor})
            return {"average": float(tensor.mean()), "run": rank.settings["told"][rank.rank]}
    except ThcError as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    with joined_rank() as rank:
        rank.report(average(rank))
