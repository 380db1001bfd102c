"""Checks of GPUs, on one rank or on the ranks of torchrun."""

import json
import os
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer

from byteps_thc._base.torch_private import HashStore
from byteps_thc._cli.compare.gradients import own_shapes
from byteps_thc._cli.compare.measure import require_gpu
from byteps_thc._cli.compare.ranks import ALONE, Job, Rank
from byteps_thc._cli.doctor.finding import Finding, State
from byteps_thc._cli.quantities import show_parameters, show_seconds
from byteps_thc._engine.decoding.plan import piece_plans
from byteps_thc._engine.device.choice import triton_lacks
from byteps_thc._engine.device.self_check import fault_of, layout_of
from byteps_thc._net.groups import Communicators, refusals_told
from byteps_thc._net.handshake import gather_by_rank
from byteps_thc._scheme.decoding.settings import DEFAULT_BITS, RankCodes
from byteps_thc.fsdp.compressed_all_gather import DEFAULT_PARAMETER_BITS

_WAYS = ("fp32", "bf16", f"THC {DEFAULT_BITS}+{DEFAULT_BITS}")
_CALLS = {"encode": "batch.encode(gradient, messages, header, 0)", "decode": "batch.decode(messages, gradient)"}
_DEADLINE_S, _TIMED_S, _RANKS = 120.0, 0.2, 4
_TORCHRUN = "torchrun --nproc-per-node gpu -m byteps_thc doctor --device    # with --nnodes on several hosts"


def check_gpus() -> Sequence[Finding]:
    """Return the findings about the GPUs of torchrun's ranks, or of one alone; leave_ranks() ends the process group.

    Raises ConfigurationError if one rank alone has no GPU.
    """
    options: dict[str, Any] = {}
    if "RANK" not in os.environ:
        require_gpu()
        options = {"store": HashStore(), "rank": 0, "world_size": 1}
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else None
    if device is not None:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device is None else "cpu:gloo,cuda:nccl", **options)
    assert dist.group.WORLD is not None
    return check_gpu(device, dist.group.WORLD)


def leave_ranks() -> None:
    """Wait until rank 0 has printed: torchrun ends all ranks when one fails."""
    assert dist.group.WORLD is not None
    Communicators(dist.group.WORLD, _DEADLINE_S).for_questions().gather(b"")
    dist.destroy_process_group()


def check_gpu(
    device: torch.device | None, ranks: dist.ProcessGroup, coordinates: int = 1 << 27, parameters: int = 25_000_000
) -> Sequence[Finding]:
    """Return the findings about all ranks' GPUs; collective.

    device: None without a GPU. coordinates, parameters: to measure with.
    """
    with refusals_told(ranks):
        fault = "PyTorch finds no GPU" if device is None else triton_lacks() or _fault_of(device)
    gather = Communicators(ranks, _DEADLINE_S).for_questions().gather
    wrong = [f"rank {rank}: {text}" for rank, text in gather_by_rank(gather, fault).items() if text]
    if wrong:
        return [Finding("kernels", State.PROBLEM, f"the host compresses instead; {'; '.join(wrong)}", required=True)]
    assert device is not None
    sound = Finding("kernels", State.OK, f"have the host's bits on {ranks.size()} ranks")
    found = [sound, _check_registers(), _check_bandwidths(device, coordinates)]
    if ranks.size() == 1:
        return [*found, Finding("all-reduce", State.OPTIONAL, "one rank has nothing to average", _TORCHRUN)]
    gradients = [torch.randn(shape, device=device) for shape in own_shapes(parameters)]
    measured = Rank(Job(ranks.size(), parameters, 0, [], device=device.type == "cuda"), gradients, _WAYS).measure(3.0)
    own = {way: statistics.median(times) for way, times in measured["step_s"].items()}
    everyone = [json.loads(text) for text in gather(json.dumps(own).encode())]
    slowest_s = {way: max(theirs[way] for theirs in everyone) for way in own}
    times_s = [max(0.0, slowest_s[way] - slowest_s[ALONE]) for way in _WAYS]
    return [*found, expectation(sum(gradient.numel() for gradient in gradients), ranks.size(), *times_s)]


def _fault_of(device: torch.device) -> str:
    codes, of_parameters = RankCodes(), RankCodes(bits=DEFAULT_PARAMETER_BITS)
    found = fault_of(device, codes) or fault_of(device, codes, sharded=True)
    return found or fault_of(device, of_parameters, gathers=True) or ""


def _check_registers() -> Finding:
    from byteps_thc._scheme.decoding.gpu.block_batch import LAUNCHERS

    texts = []
    for name, launcher in LAUNCHERS.items():
        if found := launcher.resources():
            registers, spills = map(max, zip(*found, strict=True))
            texts.append(f"{name} has {registers} and spills {spills} words")
    return Finding("registers", State.OK, ", ".join(texts) or "unknown: kernels are interpreted")


def _check_bandwidths(device: torch.device, coordinates: int) -> Finding:
    from byteps_thc._scheme.decoding.gpu.block_batch import BlockBatch

    def seconds(code: str) -> float:
        return float(Timer(code, globals=here).blocked_autorange(min_run_time=_TIMED_S).median)

    here: dict[str, Any] = {"source": torch.randn(coordinates, device=device), "header": (0, 0, 0, 0)}
    here["gradient"] = here["source"].clone()
    rate, shares = 8 * coordinates / seconds("gradient.copy_(source)"), []
    for dtype in (torch.float32, torch.bfloat16):
        settings = RankCodes().resolve(_RANKS)
        [plan] = piece_plans(layout_of(coordinates, (), (), dtype), settings, whole=True)
        here["gradient"] = here["source"].to(dtype)
        here["messages"] = torch.zeros(_RANKS, plan.up.size_bytes, dtype=torch.uint8, device=device)
        here["batch"] = BlockBatch(
            plan.shards, 0, coordinates, seed=0, bits=settings.codes.bits, down_bits=settings.down_bits,
            layouts=(plan.up, plan.down), state=torch.zeros(4, dtype=torch.int32, device=device),
            differ=torch.zeros((), dtype=torch.bool, device=device),
        )  # fmt: skip
        moved_bytes = coordinates * (dtype.itemsize + DEFAULT_BITS / 8)
        shares += [f"{moved_bytes / seconds(call) / rate:.0%} to {name} {dtype}" for name, call in _CALLS.items()]
    return Finding("bandwidth", State.OK, f"{', '.join(shares)} of the {rate * 1e-9:.0f} GB/s of a memcpy")


def expectation(parameters: int, ranks: int, fp32_s: float, bf16_s: float, thc_s: float) -> Finding:
    """Return the finding about the times of an average, with the gain of a training."""
    meaning = (
        f"{show_parameters(parameters)} parameters on {ranks} ranks take {show_seconds(thc_s)} with THC, "
        f"{show_seconds(bf16_s)} with bf16, {show_seconds(fp32_s)} with fp32: expect "
    )
    if thc_s >= bf16_s:
        return Finding("all-reduce", State.PROBLEM, f"{meaning}no gain over bf16 on this network, and use plain DDP")
    shorter = show_seconds(bf16_s - thc_s)
    return Finding("all-reduce", State.OK, f"{meaning}steps up to {shorter} shorter than with bf16")
