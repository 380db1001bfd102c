"""A rank that averages its row of a matrix, step by step: the row engine without FSDP.

settings: {"columns", "steps", "thc"}. Reports the rank's row of the average of every step, and why a server is refused.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from known_gradients import gradients
from ranks import joined_rank

from byteps_thc import NetworkConfig, ThcConfig
from byteps_thc._engine.engine import ParameterSlice, ShardMatrix
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.errors import ConfigurationError


def main() -> None:
    with joined_rank() as rank:
        columns, group = rank.settings["columns"], dist.group.WORLD
        assert group is not None
        rows = [ParameterSlice("w", row * columns, (row + 1) * columns) for row in range(rank.ranks)]
        matrix = ShardMatrix("matrix", rank.ranks, columns, tuple(rows))
        policy = CompressionPolicy(bypass_elements=0, deadline_s=240)
        engine = flat_engine(group, ThcConfig(**rank.settings["thc"]), policy, sharded=True)
        averages = []
        for step in range(rank.settings["steps"]):
            engine.start_step()
            gradient = gradients(rank.rank, step, {"w": (rank.ranks, columns)})["w"].view(-1)
            averages.append(torch.empty(columns))
            engine.reduce_scatter("w", matrix, gradient, averages[-1]).wait()
        engine.close()
        refusal = ""
        try:
            flat_engine(group, ThcConfig(), policy, NetworkConfig(["127.0.0.1:1"]))
        except ConfigurationError as error:
            refusal = str(error)
        rank.report({"averages": averages, "refusal": refusal})


if __name__ == "__main__":
    main()
