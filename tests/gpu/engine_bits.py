"""The device engine with the GPU kernels and the engine in host memory, two ranks: the same averages and residuals.

On the CPU with TRITON_INTERPRET=1, else both ranks on one GPU, where gloo's collectives go through the host. Every
check runs and prints a line; fails with the checks that failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gradients import bits, buffers_of, gradient_of
from ranks import Rank, joined_rank, run_ranks
from torch import Tensor

from byteps_thc import ThcConfig
from byteps_thc.gpu import GpuCompressor
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.factory import collective_engine
from byteps_thc.pipeline.flat_engine import FlatEngine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.thc_engines import device_engine as make_device_engine
from byteps_thc.transport.among_ranks import resolve_among_ranks
from byteps_thc.transport.communicator import Communicator, Waitable
from byteps_thc.transport.groups import open_communicator

ON_GPU = os.environ.get("TRITON_INTERPRET") != "1"
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
DEADLINE_S = 150

#: Small blocks where the interpreter does them.
_SMALL = {} if ON_GPU else {"rotation_block": 1024}
_SIZES = [[70_000, 30, 5000], [9]] if ON_GPU else [[1100, 30, 1500], [9]]
CASES: list[dict[str, Any]] = [
    {"name": "float32", "thc": _SMALL},
    {"name": "bfloat16", "thc": _SMALL, "dtype": "bfloat16"},
    {"name": "warm-up, then compressed", "thc": _SMALL, "policy": {"warmup_steps": 1, "stop_step": 2}},
    {"name": "not finite", "thc": _SMALL, "not_finite": [[1, 1, 0]]},
    {
        "name": "wider clamp where ranks agree",
        "thc": _SMALL | {"error_feedback": True, "adaptive_clamp": True, "partition_bytes": 1 << 12},
        "alike": True,
        "steps": 2,
    },
    {"name": "all-reduce", "thc": _SMALL, "policy": {"collective": "all_reduce"}},
]
if ON_GPU:
    CASES += [
        {"name": "several pieces", "thc": {"partition_bytes": 1 << 16}, "sizes": [[100_001], [5000, 1025]]},
        {"name": "sums of 9 bits", "thc": {"granularity": 200}},
        {"name": "large", "thc": {}, "sizes": [[6_500_000, 1000, 70_000]]},
    ]
else:
    CASES += [
        {"name": "several pieces", "thc": _SMALL | {"partition_bytes": 1 << 12}, "steps": 2},
        {
            "name": "pieces smaller than a block",
            "thc": _SMALL | {"partition_bytes": 1 << 11},
            "sizes": [[1100]],
            "steps": 2,
        },
    ]
_REQUANTIZED = _SMALL | {"bits": 5, "down_bits": 6, "error_feedback": True}
REQUANTIZED: list[dict[str, Any]] = [
    {"name": "requantized sums", "thc": _REQUANTIZED},
    {
        "name": "requantized sums of 16 bits, pieces that end within a group, no error feedback",
        "thc": {"rotation_block": 64, "partition_bytes": 1 << 11, "total_bits": 14, "error_feedback": False},
        "sizes": [[1100], [9]],
        "not_finite": [[1, 1, 0]],
        "steps": 2,
    },
]
CASES, REQUANTIZED = (
    [
        {"policy": {}, "steps": 3, "sizes": _SIZES} | case | {"thc": thc | {"error_feedback": True} | case["thc"]}
        for case in cases
    ]
    for thc, cases in (({"down_bits": None}, CASES), ({}, REQUANTIZED))
)


class DoneWork(Waitable):
    def wait(self) -> None:
        pass


class StagedCommunicator(Communicator):
    """Device tensors over gloo: NCCL takes one rank a GPU."""

    def __init__(self, inner: Communicator) -> None:
        self._inner = inner

    def max_(self, tensor: Tensor) -> Waitable:
        return self._staged(self._inner.max_, tensor)

    def sum_(self, tensor: Tensor) -> Waitable:
        return self._staged(self._inner.sum_, tensor)

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        return self._staged(self._inner.all_to_all, output, source)

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        return self._staged(self._inner.all_gather, output, source)

    def broadcast(self, tensor: Tensor) -> Waitable:
        return self._staged(self._inner.broadcast, tensor)

    def _staged(self, collective: Callable[..., Waitable], output: Tensor, *source: Tensor) -> Waitable:
        host = [tensor.cpu() for tensor in (output, *source)]
        collective(*host).wait()
        output.copy_(host[0])
        return DoneWork()


def device_engine(config: ThcConfig, policy: CompressionPolicy) -> FlatEngine:
    group = dist.group.WORLD
    assert group is not None
    if "partition_bytes" not in config.model_fields_set:
        config = config.model_copy(update={"partition_bytes": 9 << 20})
    resolved = resolve_among_ranks(config, policy.collective, group.size())
    compressor = GpuCompressor(resolved, workers=group.size(), worker=group.rank(), device=DEVICE)
    communicator = StagedCommunicator(open_communicator(group, policy.deadline_s))
    return make_device_engine(compressor, policy, communicator)


def engines(case: dict[str, Any]) -> tuple[FlatEngine, Engine]:
    group = dist.group.WORLD
    assert group is not None
    config, policy = ThcConfig(**case["thc"]), CompressionPolicy(**case["policy"])
    return device_engine(config, policy), collective_engine(group, config, policy)


def step(
    engine: Engine,
    case: dict[str, Any],
    rank: int,
    number: int,
    device: torch.device,
    places: list[Tensor] | None = None,
) -> list[Tensor]:
    """Average the gradients of a step, in `places` unless that is None; return them on the host."""
    engine.start_step()
    sizes = range(len(case["sizes"]))
    gradients = [gradient_of(case, rank=rank, step=number, number=buffer).to(device) for buffer in sizes]
    if places is not None:
        gradients = [place.copy_(gradient) for place, gradient in zip(places, gradients, strict=True)]
    futures = [engine.all_reduce(buffer) for buffer in buffers_of(case, gradients)]
    for future in futures:
        future.wait()
    return [gradient.cpu() for gradient in gradients]


def same(what: str, mine: Tensor, wanted: Tensor) -> None:
    """The same bits, but for the payloads of NaN, which a GPU makes in another way."""
    nan = float("nan")
    mine, wanted = (tensor.masked_fill(tensor.isnan(), nan) for tensor in (mine, wanted))
    different = (mine != wanted) & ~(mine.isnan() & wanted.isnan())
    assert bits(mine) == bits(wanted), f"{what}: {int(different.sum())} of {mine.numel()} differ"


def same_state(mine: Engine, wanted: Engine) -> None:
    state, expected = mine.state_dict(), wanted.state_dict()
    residuals, others = state.pop("residuals"), expected.pop("residuals")
    assert state == expected, (state, expected)
    assert residuals.keys() == others.keys()
    for name in residuals:
        same(f"residual of {name}", residuals[name], others[name])


def check_case(rank: int, case: dict[str, Any]) -> None:
    mine, wanted = engines(case)
    for number in range(case["steps"]):
        got = step(mine, case, rank, number, DEVICE)
        expected = step(wanted, case, rank, number, torch.device("cpu"))
        for buffer, (average, right) in enumerate(zip(got, expected, strict=True)):
            same(f"average of buffer {buffer} in step {number}", average, right)
    same_state(mine, wanted)
    figures, others = mine.statistics(), wanted.statistics()
    assert abs(figures.residual_norm - others.residual_norm) <= 1e-4 * others.residual_norm, (figures, others)
    assert figures.clamped_fraction == others.clamped_fraction, (figures, others)
    mine.close()
    wanted.close()


def check_checkpoint(rank: int) -> None:
    """Checkpoints of either engine go on in the other one."""
    case = CASES[0]
    mine, wanted = engines(case)
    step(mine, case, rank, 0, DEVICE)
    wanted.load_state_dict(mine.state_dict())
    second = step(wanted, case, rank, 1, torch.device("cpu"))
    again, reference = engines(case)
    again.load_state_dict(wanted.state_dict())
    reference.load_state_dict(wanted.state_dict())
    same("step 1", step(mine, case, rank, 1, DEVICE)[0], second[0])
    same("step 2", step(again, case, rank, 2, DEVICE)[0], step(reference, case, rank, 2, torch.device("cpu"))[0])
    same_state(again, reference)


def check_skipped_step(rank: int) -> None:
    """A step with a gradient that is not finite leaves all residuals as they were, where it is protected."""
    case = CASES[0] | {"not_finite": [[1, 1, 0]]}
    mine, wanted = engines(case)
    for number in range(3):
        for engine, device in ((mine, DEVICE), (wanted, torch.device("cpu"))):
            if number == 1:
                before = engine.state_dict()["residuals"]
            engine.protect_step()
            step(engine, case, rank, number, device)
            if number == 1:
                after = engine.state_dict()["residuals"]
                assert all(torch.equal(after[name], before[name]) for name in before), "the residuals have changed"
                engine.scale_residuals(0.5)
    same_state(mine, wanted)


def places_of(case: dict[str, Any]) -> list[Tensor]:
    """Memory for gradients."""
    return [torch.empty(sum(sizes), device=DEVICE) for sizes in case["sizes"]]


def check_moving(rank: int) -> None:
    """Gradients that are elsewhere in some rounds, a step that travels uncompressed, a checkpoint, and a lost step."""
    case = CASES[0] | {"not_finite": [[3, 1, 0]], "policy": {"warmup_steps": 1, "stop_step": 5}}
    mine, wanted = engines(case)
    first, second = (places_of(case) for _ in range(2))
    for number in range(6):
        mine.protect_step()
        wanted.protect_step()
        got = step(mine, case, rank, number, DEVICE, second if number == 2 else first)
        expected = step(wanted, case, rank, number, torch.device("cpu"))
        for buffer, (average, right) in enumerate(zip(got, expected, strict=True)):
            same(f"average of buffer {buffer} in step {number}", average, right)
        if number == 4:
            mine.load_state_dict(wanted.state_dict())
    same_state(mine, wanted)


def run_checks(checks: dict[str, Callable[[], None]]) -> dict[str, str]:
    """Run all of them; return what went wrong, by name."""
    failures = {}
    for name, check in checks.items():
        try:
            check()
            print(f"ok: {name}", flush=True)
        except Exception:
            failures[name] = traceback.format_exc()
            print(f"FAILED: {name}\n{failures[name]}", flush=True)
    return failures


def run(rank: Rank) -> dict[str, str]:
    if ON_GPU:
        torch.cuda.set_device(0)
    number, requantized = rank.rank, rank.settings["requantized"]
    checks: dict[str, Callable[[], None]] = {
        case["name"]: lambda case=case: check_case(number, case)  # type: ignore[misc]
        for case in (REQUANTIZED if requantized else CASES)
    }
    if not requantized:
        checks["checkpoint"] = lambda: check_checkpoint(number)
        checks["skipped step"] = lambda: check_skipped_step(number)
        checks["gradients that move"] = lambda: check_moving(number)
    return run_checks(checks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requantized", type=int, default=0, help="as many ranks, which requantize sums; 0: the rest")
    requantized: int = parser.parse_args().requantized
    ranks, cases = requantized or 2, REQUANTIZED if requantized else CASES
    settings = {"requantized": bool(requantized)}
    with tempfile.TemporaryDirectory() as directory:
        failures = run_ranks(Path(__file__), ranks, Path(directory), settings=settings, timeout_s=DEADLINE_S)
    if any(failures):
        sys.exit("\n".join(f"rank {i}: {name}\n{text}" for i in range(ranks) for name, text in failures[i].items()))
    print(f"same bits: {len(cases)} cases of the device engine, checkpoints, skipped steps")


def rank_main() -> None:
    with joined_rank() as rank:
        rank.report(run(rank))


if __name__ == "__main__":
    rank_main() if "THC_TEST_RANK" in os.environ else main()
