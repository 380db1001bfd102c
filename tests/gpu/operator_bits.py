"""The operators of byteps_thc.ops on a GPU and on the CPU: the same bits, in rounds of two workers.

On the CPU with TRITON_INTERPRET=1, where the GPU's implementation is called by hand, else on the GPU by the operators,
alone and compiled, with and without CUDA graphs. Fails with a MismatchError of kernel_bits.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from kernel_bits import same
from operator_worker import CASES, WORKERS, Case, OperatorWorker, maxima
from torch import Tensor

from byteps_thc import ThcConfig, ops
from byteps_thc.ops.operators import OPERATORS

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
HOST: Any = SimpleNamespace(**{operator.name(): operator.run_on_host for operator in OPERATORS})
MINE: Any = ops if ON_GPU else SimpleNamespace(**{operator.name(): operator.run_on_device for operator in OPERATORS})
ROUNDS = 2


def same_tensors(what: str, mine: list[Tensor], wanted: list[Tensor]) -> None:
    for number, (tensor, right) in enumerate(zip(mine, wanted, strict=True)):
        bits = right.view(torch.uint16) if right.dtype == torch.bfloat16 else right
        same(f"{what} {number}", tensor, bits.cpu().numpy())


def check_case(case: Case) -> None:
    mine = [OperatorWorker(MINE, case, worker, DEVICE) for worker in range(WORKERS)]
    wanted = [OperatorWorker(HOST, case, worker) for worker in range(WORKERS)]
    random = torch.Generator().manual_seed(0)
    for round in range(1, ROUNDS + 1):
        gradients = [torch.randn(case.coordinates, generator=random).to(case.dtype) for _ in range(WORKERS)]
        if round == ROUNDS:
            gradients[0][1] = torch.inf
        norms = [worker.norms(gradient) for worker, gradient in zip(wanted, gradients, strict=True)]
        top = maxima(norms)
        codes, got = [], []
        for worker in range(WORKERS):
            gradient = gradients[worker].to(DEVICE)
            mine[worker].set_round(torch.tensor([round], dtype=torch.int32, device=DEVICE))
            wanted[worker].set_round(round)
            measured = mine[worker].norms(gradient)
            same_tensors("norms", [measured], [norms[worker]])
            here = wanted[worker].encode(gradients[worker], norms[worker], top)
            there = mine[worker].encode(gradient, measured, top.to(DEVICE))
            same_tensors("encode", there, here)
            residual, right = mine[worker].residual, wanted[worker].residual
            if residual is not None and right is not None:
                same_tensors("residual", [residual], [right])
            codes.append(here[0])
            got.append(there[0])
        same_tensors("average", mine[0].average(got, top.to(DEVICE)), wanted[0].average(codes, top))


def check_compiled(mode: str) -> None:
    """On a GPU: rounds of a compiled function are those of calls one by one."""
    case = Case(5 * 8192 + 1000, ThcConfig(error_feedback=True))
    direct, compiled = OperatorWorker(ops, case, 0, DEVICE), OperatorWorker(ops, case, 0, DEVICE)
    program = torch.compile(compiled.average_alone, fullgraph=True, mode=mode)
    for number in range(5):
        gradient = torch.randn(case.coordinates, device=DEVICE)
        round = torch.tensor([number], dtype=torch.int32, device=DEVICE)
        same_tensors(mode, [program(gradient, round)], [direct.average_alone(gradient, round)])
    assert direct.residual is not None
    assert compiled.residual is not None
    same_tensors("residual", [compiled.residual], [direct.residual])


def main() -> None:
    for case in CASES.values():
        check_case(case)
    if ON_GPU:
        for mode in ("default", "reduce-overhead"):
            check_compiled(mode)
    print(f"same bits: {len(CASES)} cases of the operators")


if __name__ == "__main__":
    main()
