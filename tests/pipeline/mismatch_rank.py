"""A rank of engines that get other buffers than those of the other ranks.

settings: {"servers": addresses of a thc-ps; "devices": ranks that compress on a device with them, CPU tensors, too;
"cases": [{"name", "network": job or none for the collective engine, "device": its twin for devices, on CPU tensors;
"parameters": [name, elements] of the buffers that a rank averages after a first step, by rank, and where
the second of two parameters in one begins; "first": the same of the
first step, of all ranks; "small_packets": whether norms need several; "scale": loss scale of the last rank after the
first step, where the others have 2; "ahead": rounds that the last rank is ahead; "asks": whether a rank asks for
figures after the second step}]}. Reports for every case the error of the second step, of a third one, of a call for
figures and of a buffer after that, what the gradients of the second step are then, and whether the residuals are as
they were.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from host_device_compressor import make_host_device_engine, take_cpu_for_device
from ranks import Rank, joined_rank

from byteps_thc import ThcConfig, ThcError
from byteps_thc.engines import make_engine
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.saved_state import sealed
from byteps_thc.transport.servers import NetworkConfig

CONFIG = ThcConfig(partition_bytes=1 << 14, rotation_block=1024, error_feedback=True, down_bits=None)
#: long, because no wait may last as long
POLICY = CompressionPolicy(bypass_elements=10, deadline_s=45)
#: the norms of a piece are several packets
SMALL_PACKETS = ThcConfig(partition_bytes=1 << 14, rotation_block=64, codes_per_packet=64)
FIRST = [["w", 5000], ["v", 5000], ["u", 9000]]


def buffer(name: str, size: int, *starts: int) -> GradientBuffer:
    edges = [0, *starts, size]
    slices = (ParameterSlice(f"{name}{start or ''}", start, stop) for start, stop in itertools.pairwise(edges))
    return GradientBuffer(f"buffer of {name}", torch.linspace(-1, 1, size), tuple(slices))


def average(engine: Engine, parameters: list[Any]) -> tuple[str, str]:
    """Return the error of a step, and what its gradients are: "as before", "NaN" or "averages"."""
    buffers = [buffer(*given) for given in parameters]
    gradients = [given.gradient for given in buffers]
    try:
        engine.start_step()
        futures = [engine.all_reduce(given) for given in buffers]
        for future in futures:
            future.wait()
    except ThcError as error:
        changed = any(not torch.equal(gradient, torch.linspace(-1, 1, len(gradient))) for gradient in gradients)
        return f"{type(error).__name__}: {error}", "averages" if changed else "as before"
    return "", "NaN" if all(gradient.isnan().all() for gradient in gradients) else "averages"


def run_case(rank: Rank, case: dict[str, Any]) -> dict[str, Any]:
    group = dist.group.WORLD
    assert group is not None
    network = NetworkConfig(rank.settings["servers"], job=case["network"]) if "network" in case else None
    config, parameters = SMALL_PACKETS if case.get("small_packets") else CONFIG, case.get("first", FIRST)
    if case.get("device"):
        engine: Engine = make_host_device_engine(group, config, POLICY)
    else:
        engine = make_engine(group, config, POLICY, network)
    first, _ = average(engine, parameters)
    state = engine.state_dict()
    if rank.rank == rank.ranks - 1:
        state["round"] += case.get("ahead", 0)
    engine.load_state_dict(sealed(state))
    before = engine.state_dict()["residuals"]
    if "scale" in case:
        engine.use_loss_scale(case["scale"] if rank.rank == rank.ranks - 1 else 2.0)
    error, gradients = average(engine, case["parameters"][rank.rank])
    asked = ""
    if case.get("asks"):
        try:
            engine.statistics()
        except ThcError as refused:
            asked = f"{type(refused).__name__}: {refused}"
    again, _ = average(engine, parameters)
    later = ""
    if case.get("device"):
        try:
            engine.all_reduce(buffer("late", 5000))
        except ThcError as refused:
            later = str(refused)
    after = engine.state_dict()["residuals"]
    kept = all(torch.equal(after[name], residual) for name, residual in before.items())
    engine.close()
    return {
        "first": first,
        "error": error,
        "again": again,
        "gradients": gradients,
        "kept": kept,
        "asked": asked,
        "later": later,
    }


def main() -> None:
    with joined_rank() as rank:
        reports = {}
        if rank.rank in rank.settings.get("devices", []):
            take_cpu_for_device()
        for case in rank.settings["cases"]:
            reports[case["name"]] = run_case(rank, case)
            dist.barrier()
        rank.report(reports)


if __name__ == "__main__":
    main()
