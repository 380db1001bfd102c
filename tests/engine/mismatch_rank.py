"""A rank of engines whose buffers differ from rank to rank.

settings: {"servers": addresses of a thc-ps; "devices": ranks that compress on a device with them, CPU tensors, too;
"cases": [{"name", "network": job, none for the engine among ranks; "parameters": [name, elements] of the buffers of the
second step, by rank, and the place of a second parameter; "first": of the first step, of all ranks; "again": of the
third step, if not as in the first; "small_packets": norms need several; "odd": "dtype" and "row" (elements of rows with
scales) of the last rank's buffers in the second step; "other": of OTHERS, in another version of the last rank; "scale":
loss scale of the last rank after the first step, 2 of others; "ahead": rounds that the last rank is ahead}]}. Reports
for every case the errors of the second and third step, the gradients of the second, and if residuals are unchanged.
"""

import itertools
import types
import zlib
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from host_device_compressor import take_cpu_for_device

from byteps_thc import ServerCodes, ThcError
from byteps_thc._engine.engine import Engine, GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import sealed
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme import shares
from byteps_thc._scheme.decoding.settings import RankCodes
from thc_lab.ranks import Rank, default_group, joined_rank

CODES = RankCodes(partition_bytes=1 << 14)
WITH_SERVERS = ServerCodes(partition_bytes=1 << 14, rotation_block=1024, error_feedback=True)
#: long, because no wait may last as long
POLICY = CompressionPolicy(bypass_elements=10, deadline_s=45)
#: the norms of a piece are several packets
SMALL_PACKETS = ServerCodes(partition_bytes=1 << 14, rotation_block=64, codes_per_packet=64)
OTHERS = {"keys": ("zlib", types.SimpleNamespace(crc32=lambda data: zlib.crc32(data) ^ 1)), "blocks": ("BLOCK", 32)}
FIRST = [["w", 5000], ["v", 5000], ["u", 9000]]


def buffer(name: str, size: int, *starts: int, dtype: str = "float32", row: int = 0) -> GradientBuffer:
    edges = [0, *starts, size]
    slices = (ParameterSlice(f"{name}{start or ''}", start, stop, row=row) for start, stop in itertools.pairwise(edges))
    return GradientBuffer(f"buffer of {name}", torch.linspace(-1, 1, size).to(getattr(torch, dtype)), tuple(slices))


def average(engine: Engine, parameters: list[Any], **odd: Any) -> tuple[str, str]:
    """Return the error of a step, and the kind of its gradients: "as before" or "averages"."""
    buffers = [buffer(*given, **odd) for given in parameters]
    before = [given.gradient.clone() for given in buffers]
    error = ""
    try:
        engine.start_step()
        for future in [engine.all_reduce(given) for given in buffers]:
            future.wait()
    except ThcError as raised:
        error = f"{type(raised).__name__}: {raised}"
    changed = any(not torch.equal(given.gradient, was) for given, was in zip(buffers, before, strict=True))
    return error, "averages" if changed else "as before"


def run_case(rank: Rank, case: dict[str, Any]) -> dict[str, Any]:
    scheme: RankCodes | NetworkConfig = CODES
    if "network" in case:
        codes = SMALL_PACKETS if case.get("small_packets") else WITH_SERVERS
        scheme = NetworkConfig(rank.settings["servers"], job=case["network"], codes=codes)
    parameters, last = case.get("first", FIRST), rank.rank == rank.ranks - 1
    engine = flat_engine(default_group(), scheme, POLICY)
    first, _ = average(engine, parameters)
    state = engine.state_dict()
    if last:
        state["round"] += case.get("ahead", 0)
    engine.load_state_dict(sealed(state))
    before = engine.state_dict().get("residuals", {})
    if "scale" in case:
        engine.use_loss_scale(case["scale"] if last else 2.0)
    other = mock.patch.object(shares, *OTHERS[case["other"]]) if last and "other" in case else nullcontext()
    with other:
        error, gradients = average(engine, case["parameters"][rank.rank], **(case.get("odd", {}) if last else {}))
    again, _ = average(engine, case.get("again", parameters))
    after = engine.state_dict().get("residuals", {})
    kept = all(torch.equal(after[name], residual) for name, residual in before.items())
    engine.close()
    return {"first": first, "error": error, "again": again, "gradients": gradients, "kept": kept}


with joined_rank() as rank:
    reports = {}
    if rank.rank in rank.settings.get("devices", []):
        take_cpu_for_device()
    for case in rank.settings["cases"]:
        reports[case["name"]] = run_case(rank, case)
        dist.barrier()
    rank.report(reports)
