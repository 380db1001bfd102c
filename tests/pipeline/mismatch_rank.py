"""A rank of engines that get other buffers than those of the other ranks.

settings: {"servers": addresses of a thc-ps; "cases": [{"name", "network": job or none for the collective engine,
"parameters": [name, elements] of the buffers that a rank averages after a first step, by rank; "ahead": rounds that
the last rank is ahead}]}. Reports for every case the error of the second step, of a third one, and whether the
gradients and residuals of the second step are as they were.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank

from byteps_thc import ThcConfig, ThcError
from byteps_thc.engines import make_engine
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.saved_state import sealed
from byteps_thc.transport.servers import NetworkConfig

CONFIG = ThcConfig(partition_bytes=1 << 14, rotation_block=1024)
#: long, because no wait may last as long
POLICY = CompressionPolicy(bypass_elements=10, deadline_s=45)
FIRST = [["w", 5000], ["v", 5000], ["u", 9000]]


def average(engine: Engine, parameters: list[Any]) -> tuple[str, bool]:
    """Return the error of a step, and whether its gradients have changed."""
    gradients = [torch.linspace(-1, 1, size) for _, size in parameters]
    engine.start_step()
    try:
        futures = [
            engine.all_reduce(GradientBuffer(f"buffer of {name}", gradient, (ParameterSlice(name, 0, size),)))
            for (name, size), gradient in zip(parameters, gradients, strict=True)
        ]
        for future in futures:
            future.wait()
    except ThcError as error:
        changed = any(not torch.equal(gradient, torch.linspace(-1, 1, len(gradient))) for gradient in gradients)
        return f"{type(error).__name__}: {error}", changed
    return "", True


def run_case(rank: Rank, case: dict[str, Any]) -> dict[str, Any]:
    group = dist.group.WORLD
    assert group is not None
    network = NetworkConfig(rank.settings["servers"], job=case["network"]) if "network" in case else None
    engine = make_engine(group, CONFIG, POLICY, network)
    first, _ = average(engine, FIRST)
    state = engine.state_dict()
    if rank.rank == rank.ranks - 1:
        state["round"] += case.get("ahead", 0)
    engine.load_state_dict(sealed(state))
    before = engine.state_dict()["residuals"]
    error, changed = average(engine, case["parameters"][rank.rank])
    again, _ = average(engine, FIRST)
    after = engine.state_dict()["residuals"]
    kept = all(torch.equal(after[name], residual) for name, residual in before.items())
    engine.close()
    return {"first": first, "error": error, "again": again, "untouched": kept and not changed}


def main() -> None:
    with joined_rank() as rank:
        reports = {}
        for case in rank.settings["cases"]:
            reports[case["name"]] = run_case(rank, case)
            dist.barrier()
        rank.report(reports)


if __name__ == "__main__":
    main()
