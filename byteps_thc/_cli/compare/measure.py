"""Runs ranks.py on this host, and converts its times and errors to a model's and its ranks'."""

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from byteps_thc._base.errors import ConfigurationError, TransportError
from byteps_thc._cli.compare.gradients import Gradients, own_shapes
from byteps_thc._cli.compare.model import Way
from byteps_thc._cli.compare.ranks import ALONE, BITS, POWER_SGD, POWER_SGD_RANK, SERVERS, Job
from byteps_thc._cli.launch import KEEP_MEMORY, ParameterServer
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.adding.server_codes import ServerCodes

#: Ranks on this host, and parameters of all ranks together: 25 M in each of four take 4 GB with the hooks' memory.
_RANKS_HERE, _PARAMETERS_HERE = 4, 100_000_000
_BUCKET_PARAMETERS = 25 * (1 << 18)  # DDP's bucket_cap_mb=25
#: A rank's hook, kernels and gloo's loop keep no more cores busy.
_MOST_CORES = 2.0
_START_S = 240.0
_FP32_BITS = 64


@dataclass(frozen=True)
class Layout:
    """A training. cores: of a rank, or part of one. servers: thc-ps, each with a link as fast as a rank's; 0: none."""

    parameters: int
    ranks: int
    ranks_per_host: int
    cores: float
    servers: int
    device: bool


def measure(layout: Layout, gradients: Gradients | None, seconds: float) -> list[Way]:
    """Measure for about that many seconds, and as long again for the start of the ranks.

    gradients: None: the ranks make their own. Raises TransportError if the ranks end with an error, ConfigurationError
    without a GPU or thc-ps.
    """
    if layout.device:
        require_gpu()
    ranks = min(layout.ranks, _RANKS_HERE) if gradients is None else len(gradients)
    most = min(layout.parameters, _PARAMETERS_HERE // ranks)
    if gradients is None:
        samples, shapes = None, own_shapes(most)
    else:
        samples, shapes = [_sample(own, most) for own in gradients], [value.shape for value in gradients[0].values()]
    sizes = [*map(math.prod, shapes)] if samples is None else [value.numel() for value in samples[0]]
    measured = sum(sizes)
    if max(sizes, default=0) < (least := CompressionPolicy().bypass_elements):
        raise ConfigurationError(
            f"gradients of {measured} parameters are too small to compare: THC sends fewer than {least} as they are. "
            "Pass gradients of a larger model"
        )
    step_s, nmse = _run(Job(ranks, most, seconds, [], device=False), samples, layout.servers)
    if layout.device:
        step_s, _ = _run(Job(1, most, seconds, [], device=True), None if samples is None else samples[:1], 0)
        slower = 1.0
    else:
        usable = len(os.sched_getaffinity(0)) / ranks
        slower = min(usable, _MOST_CORES) / min(layout.cores, _MOST_CORES)
    alone_s = step_s.pop(ALONE)
    processor_s = {name: slower * max(0.0, time_s - alone_s) / measured for name, time_s in step_s.items()}
    # A job with more ranks sends more: gloo's time grows as fp32's does with its bytes.
    more = 0.0 if layout.device else _others(layout.ranks) / _others(ranks) - 1
    ways = []
    for name, time_s in processor_s.items():
        bits = _bits(name, layout.ranks, shapes)
        time_s += max(0.0, more * processor_s["fp32"] * bits / _FP32_BITS)
        ways.append(_way(layout, name, bits, nmse[name], layout.parameters * time_s))
    return ways


def require_gpu() -> None:
    """Raise ConfigurationError without a GPU, for --device."""
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "--device needs a GPU, and PyTorch finds none on this host: omit it, or use another host"
        )


def _way(layout: Layout, name: str, bits: float, nmse: float, processor_s: float) -> Way:
    """bits: of a parameter. processor_s: of the model."""
    ranks, of_host = layout.ranks, layout.ranks_per_host
    buckets = 1 if name == POWER_SGD else max(1, round(layout.parameters / _BUCKET_PARAMETERS))
    if name == SERVERS:
        link_bits = ServerCodes().resolve(ranks).value_bits * max(of_host, ranks / layout.servers)
    elif name.startswith("THC"):  # the ranks of a host average exactly before
        link_bits = bits * _others(ranks // of_host)
    else:  # a ring enters and leaves a host once
        link_bits = bits * _others(ranks)
    return Way(name, bits, nmse, processor_s, layout.parameters * link_bits, buckets)


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _bits(name: str, ranks: int, shapes: Sequence[Sequence[int]]) -> float:
    if name == SERVERS:
        resolved = ServerCodes().resolve(ranks)
        return resolved.codes.bits + resolved.value_bits
    if name == POWER_SGD:
        return _FP32_BITS * sum(map(_low_rank_numbers, shapes)) / sum(map(math.prod, shapes))
    return BITS[name]


def _low_rank_numbers(shape: Sequence[int]) -> int:
    """Return the numbers that torch's PowerSGD sends for a tensor: all, unless it saves half."""
    rows, columns = math.prod(shape[:1]), math.prod(shape[1:])
    low = (rows + columns) * min(rows, columns, POWER_SGD_RANK)
    return low if 2 * low < rows * columns else rows * columns


def _sample(gradients: dict[str, Tensor], most: int) -> list[Tensor]:
    """Return the first rows of each tensor, together `most` numbers, or few more."""
    total = sum(value.numel() for value in gradients.values())
    share = min(1.0, most / total)
    return [value[: math.ceil(share * len(value))].clone() if value.dim() else value for value in gradients.values()]


def _run(job: Job, gradients: Sequence[list[Tensor]] | None, servers: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of a step and its error, by the name of the way."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("THC_")}
    environment = kept | {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(job.ranks)} | KEEP_MEMORY
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        addresses = [stack.enter_context(ParameterServer(["--log-level", "warning"])).address for _ in range(servers)]
        (folder / "job.json").write_text(json.dumps(asdict(job) | {"servers": addresses}))
        for rank, own in enumerate(gradients or []):
            torch.save(own, folder / f"{rank}.pt")
        command = [sys.executable, "-P", "-m", "byteps_thc._cli.compare.ranks", place]
        process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
        try:
            code = process.wait(_START_S + 2 * job.seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code != 0:
            how = "did not end in time" if code is None else f"ended with exit code {code}"
            raise TransportError(f"the ranks that measure on this host {how}: read their messages above")
        results = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(job.ranks)]
    step_s = {
        name: statistics.median(map(max, zip(*(result["step_s"][name] for result in results), strict=True)))
        for name in results[0]["step_s"]
    }
    return step_s, results[0]["nmse"]
