"""The device engine among ranks with the GPU kernels, and the engine in host memory: the same averages.

PYTHONPATH=tests/gpu:tests/lib python -P tests/gpu/engine_bits.py [--ranks 2] [--only WORD]

The host's engine cuts gradients into pieces, the device's does not. On the CPU with TRITON_INTERPRET=1, else all ranks
on one GPU, with gloo's collectives. Every check prints a line; fails with the checks that failed.
"""

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gradients import bits, buffers_of, gradient_of
from torch import Tensor

from byteps_thc import ThcError
from byteps_thc._base.errors import InputError
from byteps_thc._engine.device import choice, self_check
from byteps_thc._engine.door import open_engine
from byteps_thc._engine.engine import Engine, GradientBuffer, ParameterSlice, ShardMatrix
from byteps_thc._engine.factory import flat_engine, rank_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.communicator import Communicator, Waitable
from byteps_thc._net.groups import Communicators
from byteps_thc._scheme.decoding.gpu.block_batch import BlockBatch, GatherBatch
from byteps_thc._scheme.decoding.gpu.block_kernels import FIXED
from byteps_thc._scheme.decoding.settings import RankCodes
from thc_lab.ranks import SETTINGS_VARIABLE, Rank, default_group, joined_rank, run_ranks

ON_GPU = os.environ.get("TRITON_INTERPRET") != "1"
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
CPU = torch.device("cpu")
DEADLINE_S = 60 if ON_GPU else 450

#: Several pieces in host memory.
_THC = {"partition_bytes": 1 << 16 if ON_GPU else 1 << 12}
#: One, for gradients that are not finite: tiles end at pieces, and averages of whole tiles are NaN.
_ONE_PIECE = {"partition_bytes": 1 << 20}
#: In the interpreter with few sizes of blocks: block_bits.py has all.
_SIZES = [[70_000, 30, 5000], [9]] if ON_GPU else [[1024, 30, 1536], [9]]
_CASES: list[dict[str, Any]] = [
    {"name": "float32", "steps": 2},
    {"name": "bfloat16, 3 bits up, 8 down", "thc": _THC | {"bits": 3, "down_bits": 8}, "dtype": "bfloat16"},
    {"name": "rows of embeddings", "sizes": [[1050, 30]], "width": 50, "zeros": [110, 900]},
    {"name": "rows of 40", "sizes": [[1120, 30]], "width": 40, "zeros": [110, 300]},
    {
        "name": "rows of 44, bfloat16",
        "thc": _ONE_PIECE | {"bits": 3},
        "sizes": [[1100, 30, 500]],
        "width": 44,
        "dtype": "bfloat16",
        "not_finite": [[1, 0, 0]],
    },
    {"name": "warm-up, then compressed", "policy": {"warmup_steps": 1, "stop_step": 2}, "steps": 3},
    {"name": "not finite", "thc": _ONE_PIECE, "not_finite": [[1, 0, 0]]},
    {"name": "an infinite one that travels exactly", "sizes": [[30, 1100]], "not_finite": [[1, 0, 0]], "value": "inf"},
]
if ON_GPU:
    _CASES += [
        {"name": "several buckets", "sizes": [[100_001], [5000, 1025]], "dtype": "float16"},
        {"name": "large", "thc": {}, "sizes": [[6_500_000, 1000, 70_000]]},
    ]
CASES = [{"thc": _THC, "policy": {}, "steps": 1, "sizes": _SIZES} | case for case in _CASES]


class KernelError(Exception):
    """As Triton's: of no other base."""


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


def device_engine(
    codes: RankCodes, policy: CompressionPolicy, *, sharded: bool = False, device: torch.device = DEVICE
) -> FlatEngine:
    settings = codes.resolve(default_group().size(), sharded=sharded)
    communicator = Communicators(default_group(), policy.deadline_s).for_caller()
    staged = StagedCommunicator(communicator) if ON_GPU else communicator
    return rank_engine(settings, default_group().rank(), policy, [staged], device=device, sharded=sharded)


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
    for future in [engine.all_reduce(buffer) for buffer in buffers_of(case, gradients)]:
        future.wait()
    return [gradient.cpu() for gradient in gradients]


def same(what: str, mine: Tensor, wanted: Tensor) -> None:
    """The same bits, but for the payloads of NaN, which a GPU makes in another way."""
    nan = float("nan")
    mine, wanted = (tensor.masked_fill(tensor.isnan(), nan) for tensor in (mine, wanted))
    different = (mine != wanted) & ~(mine.isnan() & wanted.isnan())
    assert bits(mine) == bits(wanted), f"{what}: {int(different.sum())} of {mine.numel()} differ"


def check_case(rank: int, case: dict[str, Any]) -> None:
    codes, policy = RankCodes(**case["thc"]), CompressionPolicy(**case["policy"])
    mine, wanted = device_engine(codes, policy), flat_engine(default_group(), codes, policy)
    for number in range(case["steps"]):
        got, expected = step(mine, case, rank, number, DEVICE), step(wanted, case, rank, number, CPU)
        for buffer, (average, right) in enumerate(zip(got, expected, strict=True)):
            same(f"average of buffer {buffer} in step {number}", average, right)
            if case.get("not_finite"):
                assert average.isfinite().all() == (buffer > 0)
    assert mine.state_dict() == wanted.state_dict()
    figures, others = mine.statistics(), wanted.statistics()
    assert figures.coordinates == others.coordinates, (figures, others)
    mine.close()
    wanted.close()


def check_rows(rank: int, dtype: torch.dtype) -> None:
    """A reduce-scatter: columns of two parameters, one that travels exactly, padding in the last row, rows of 40."""
    columns, ranks = 1045, default_group().size()
    codes, policy = RankCodes(**_THC), CompressionPolicy()
    engines = device_engine(codes, policy, sharded=True), flat_engine(default_group(), codes, policy, sharded=True)
    ends = [1042] * (ranks - 1) + [1030]
    compressed = tuple(
        ParameterSlice(f"p{number}", row * columns + start, row * columns + min(stop, ends[row]), row=40 * number)
        for row in range(ranks)
        for number, (start, stop) in enumerate(((0, 512), (542, 1042)))
    )
    matrix = ShardMatrix("m", ranks, columns, compressed, exact=((512, 542),), parameters=("p0", "p1", "small"))
    for number in range(2):
        gradient = gradient_of({"sizes": [[matrix.size]]}, rank=rank, step=number, number=0).to(dtype)
        averages = []
        for engine, device in zip(engines, (DEVICE, CPU), strict=True):
            output = torch.full((columns,), 7.0, dtype=dtype, device=device)
            engine.start_step()
            engine.reduce_scatter("m", matrix, gradient.to(device, copy=True), output).wait()
            averages.append(output.cpu())
        same(f"average in step {number}", *averages)
    for engine in engines:
        engine.close()


def check_elsewhere(rank: int) -> None:
    """Gradients that are not on the engine's device are copied there and back, also in some steps only."""
    case = CASES[0]
    there = CPU if ON_GPU else torch.device("cpu", 0)  # which is not the same as "cpu"
    engine = device_engine(RankCodes(**_THC), CompressionPolicy(), device=DEVICE if ON_GPU else there)
    wanted = device_engine(RankCodes(**_THC), CompressionPolicy())
    for number in range(2):
        place = CPU if number else DEVICE
        got, expected = (step(one, case, rank, number, at) for one, at in ((engine, place), (wanted, DEVICE)))
        same(f"average in step {number}", got[0], expected[0])
    assert engine.statistics().to_device_bytes > 0 == wanted.statistics().to_device_bytes
    engine.close()
    wanted.close()


def check_kernel_fails(rank: int) -> None:
    """Any error of a kernel ends the engine."""
    engine, errors = device_engine(RankCodes(**_THC), CompressionPolicy()), []
    case = CASES[0] | {"sizes": _SIZES[:1]}
    with patch.object(BlockBatch, "recode", side_effect=KernelError("no registers")):
        for number in range(2):
            try:
                step(engine, case, rank, number, DEVICE)
            except (KernelError, ThcError) as error:
                errors.append(f"{type(error).__name__}: {error}")
    engine.close()
    assert errors == ["KernelError: no registers", "TransportError: the engine has ended: no registers"], errors


def check_choice(rank: int, corrupted: str) -> None:
    """kernels="auto" compresses on the device, unless one rank's kernels have other bits than the host's."""
    texts, gradient = list[str](), self_check._gradient
    of_gathers, sharded = corrupted.startswith("gather's "), corrupted == "average"
    batches = GatherBatch if of_gathers else BlockBatch
    name = "decode" if of_gathers or sharded else corrupted
    launch = getattr(batches, name, None)

    def corrupt(batch: BlockBatch | GatherBatch, source: Tensor, to: Tensor, *others: Any) -> None:
        assert launch is not None
        launch(batch, source, to, *others)
        to.view(-1)[-1:] += 1

    def without_subnormals(layout: Layout, number: int) -> Tensor:
        x = gradient(layout, number)
        return x.masked_fill_(x.abs() < torch.finfo(x.dtype).tiny, 0) if x.dtype == torch.bfloat16 else x

    patches = [
        patch.multiple(choice, backends=lambda _: ["nccl"], gpu_of=lambda *_: DEVICE, warn_once=texts.append),
        patch.object(choice, "_why_not", lambda *_: None),
        patch.object(Communicators, "of_device", lambda own: own.of_host(1)[0]),
    ]
    if not ON_GPU:  # the interpreter drops subnormal bfloat16 values
        patches.append(patch.object(self_check, "_gradient", without_subnormals))
    if launch is not None:
        patches.append(patch.object(self_check, "DTYPES", (torch.float32,)))
    if launch is not None and rank == 1:
        patches.append(patch.object(batches, name, corrupt))
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        group, policy = default_group(), CompressionPolicy()
        if of_gathers:
            in_stream = choice.agree_on_kernels(group, RankCodes(), policy, DEVICE, gathers=True).kernels == "device"
        else:
            engine = open_engine(group, None, RankCodes(), policy, gradients_on=DEVICE, sharded=sharded).engine
            assert isinstance(engine, FlatEngine)
            in_stream = engine.in_stream
            engine.close()
    assert in_stream == (launch is None), texts
    wanted = f"because of rank 1: the GPU's {corrupted} kernel has other bits than the host's for float32"
    assert [wanted in text for text in texts] == [True] * (launch is not None and rank == 0), texts


def check_different_gradients(rank: int, how: str) -> None:
    """Averages are NaN on all ranks from there on, also of exact parameters, and all ranks get the error.

    names: when later steps begin. others: by state_dict(). bit: one rank's first average has a wrong bit.
    """
    odd = rank == default_group().size() - 1
    sizes = CASES[0]["sizes"][0]
    engine = device_engine(RankCodes(**_THC), CompressionPolicy())
    decode = BlockBatch.decode

    def decode_wrong_code(batch: BlockBatch, gathered: Tensor, out: Tensor) -> None:
        gathered.view(-1)[16 * int(batch._decoded.fixed[FIXED.index("codes_at")])] ^= 1
        decode(batch, gathered, out)

    def average(name: str, size: int) -> Tensor:
        parts = (ParameterSlice(name, 0, size), ParameterSlice("small", size, size + 30))
        gradient = torch.linspace(-1, 1, size + 30, device=DEVICE)
        engine.all_reduce(GradientBuffer("bucket", gradient, parts)).wait()
        return gradient

    engine.start_step()
    with patch.object(BlockBatch, "decode", decode_wrong_code if odd and how == "bit" else decode):
        assert average("weight", sizes[0]).isfinite().all()
    if how == "loss scale":
        engine.use_loss_scale(4.0 if odd else 2.0)
    engine.start_step()
    assert average("other" if odd and how == "names" else "weight", sizes[0]).isnan().all()
    assert average("weight", sizes[0]).isnan().all()
    exact = torch.ones(9, device=DEVICE)
    engine.all_reduce(GradientBuffer("of small ones", exact, (ParameterSlice("tiny", 0, 9),))).wait()
    assert exact.isnan().all()
    error = None
    try:
        for _ in range(3 if how == "names" else 0):  # on a GPU the first ones may know of earlier steps only
            if ON_GPU:
                torch.cuda.synchronize()
            engine.start_step()
        engine.state_dict()
    except InputError as raised:
        error = str(raised)
    assert error is not None, "no rank has noticed"
    assert ("the last average of" if how == "bit" else "Compressed averages are NaN from there on") in error, error
    assert ("scaled by" in error) == (how == "loss scale"), error
    engine.state_dict()  # the error comes once
    engine.close()


def run_checks(checks: dict[str, Callable[[], None]]) -> dict[str, str]:
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
    number = rank.rank
    checks: dict[str, Callable[[], None]] = {case["name"]: partial(check_case, number, case) for case in CASES}
    for dtype in (torch.float32, torch.bfloat16):
        checks[f"reduce-scatter, {dtype}"] = partial(check_rows, number, dtype)
    checks["gradients elsewhere"] = partial(check_elsewhere, number)
    checks["a kernel fails"] = partial(check_kernel_fails, number)
    for kernel in ("", "recode", "average", "gather's decode"):
        name = f"kernels of choice, {kernel or 'no'} fault"
        checks[name] = partial(check_choice, number, kernel)
    for how in ("names", "loss scale", "bit"):
        checks[f"different {how}"] = partial(check_different_gradients, number, how)
    only = rank.settings["only"]
    return run_checks({name: check for name, check in checks.items() if only in name})


def launch(program: Path, ranks: int, **options: Any) -> None:
    """Run the checks of a program on ranks, print the log of rank 0, and exit if one fails. options: of run_ranks()."""
    with tempfile.TemporaryDirectory() as directory:
        failures = run_ranks(program, ranks, Path(directory), timeout_s=DEADLINE_S, **options)
        print((Path(directory) / "rank0.log").read_text(errors="replace"), flush=True)
    if any(failures):
        sys.exit("\n".join(f"rank {i}: {name}\n{text}" for i in range(ranks) for name, text in failures[i].items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="part of a check's name")
    arguments = parser.parse_args()
    launch(Path(__file__), arguments.ranks, settings={"only": arguments.only})
    print(f"same bits: {arguments.ranks} ranks of the device engine")


def rank_main(checks: Callable[[Rank], dict[str, str]]) -> None:
    with joined_rank() as rank:
        rank.report(checks(rank))


if __name__ == "__main__":
    rank_main(run) if SETTINGS_VARIABLE in os.environ else main()
