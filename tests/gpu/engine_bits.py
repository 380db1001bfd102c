"""The device engine with the GPU kernels and the engine in host memory, two ranks: the same averages and residuals.

On the CPU with TRITON_INTERPRET=1, else both ranks on one GPU, where gloo's collectives go through the host. Every
check runs and prints a line; fails with the checks that failed.
"""

from __future__ import annotations

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
from byteps_thc.pipeline.device.engine import DeviceEngine
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.factory import collective_engine
from byteps_thc.pipeline.policy import CompressionPolicy
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
CASES = [{"policy": {}, "steps": 3, "sizes": _SIZES} | case for case in CASES]


class StagedWork(Waitable):
    def __init__(self, work: Waitable, received: Tensor, output: Tensor) -> None:
        self._work, self._received, self._output = work, received, output

    def wait(self) -> None:
        self._work.wait()
        self._output.copy_(self._received)


class StagedCommunicator(Communicator):
    """Device tensors over gloo: NCCL takes one rank a GPU."""

    def __init__(self, inner: Communicator) -> None:
        self._inner = inner

    def max_(self, tensor: Tensor) -> Waitable:
        host = tensor.cpu()
        return StagedWork(self._inner.max_(host), host, tensor)

    def sum_(self, tensor: Tensor) -> Waitable:
        host = tensor.cpu()
        return StagedWork(self._inner.sum_(host), host, tensor)

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        host = torch.empty_like(output, device="cpu")
        return StagedWork(self._inner.all_to_all(host, source.cpu()), host, output)

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        host = torch.empty_like(output, device="cpu")
        return StagedWork(self._inner.all_gather(host, source.cpu()), host, output)

    def broadcast(self, tensor: Tensor) -> Waitable:
        host = tensor.cpu()
        return StagedWork(self._inner.broadcast(host), host, tensor)


def device_engine(config: ThcConfig, policy: CompressionPolicy) -> DeviceEngine:
    group = dist.group.WORLD
    assert group is not None
    if "partition_bytes" not in config.model_fields_set:
        config = config.model_copy(update={"partition_bytes": 9 << 20})
    resolved = config.resolve(group.size(), packed_sums=True)
    compressor = GpuCompressor(resolved, workers=group.size(), worker=group.rank(), device=DEVICE)
    return DeviceEngine(compressor, policy, StagedCommunicator(open_communicator(group, policy.deadline_s)))


def engines(case: dict[str, Any]) -> tuple[DeviceEngine, Engine]:
    group = dist.group.WORLD
    assert group is not None
    config, policy = ThcConfig(**case["thc"]), CompressionPolicy(**case["policy"])
    return device_engine(config, policy), collective_engine(group, config, policy)


def step(engine: Engine, case: dict[str, Any], rank: int, number: int, device: torch.device) -> list[Tensor]:
    """Average the gradients of a step; return them on the host."""
    engine.start_step()
    sizes = range(len(case["sizes"]))
    gradients = [gradient_of(case, rank=rank, step=number, number=buffer).to(device) for buffer in sizes]
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
    checks: dict[str, Callable[[], None]] = {
        case["name"]: lambda case=case: check_case(rank.rank, case)  # type: ignore[misc]
        for case in CASES
    }
    checks["checkpoint"] = lambda: check_checkpoint(rank.rank)
    checks["skipped step"] = lambda: check_skipped_step(rank.rank)
    return run_checks(checks)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        failures = run_ranks(Path(__file__), 2, Path(directory), timeout_s=DEADLINE_S)
    if any(failures):
        sys.exit("\n".join(f"rank {rank}: {name}\n{text}" for rank in (0, 1) for name, text in failures[rank].items()))
    print(f"same bits: {len(CASES)} cases of the device engine, checkpoints, skipped steps")


def rank_main() -> None:
    with joined_rank() as rank:
        rank.report(run(rank))


if __name__ == "__main__":
    rank_main() if "THC_TEST_RANK" in os.environ else main()
