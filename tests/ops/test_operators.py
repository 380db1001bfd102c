"""The operators on CPU tensors: Compressor's bits, what torch.library asks of them, and compiled functions of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from operator_worker import CASES, WORKERS, Case, OperatorWorker, maxima

from byteps_thc import Compressor, ThcConfig, _core, ops
from byteps_thc.errors import ConfigurationError, InputError
from byteps_thc.ops.arguments import blocks_of, packed_bytes, padded_of

CASE = CASES["float32"]
#: torch.compile's own imports
COMPILES = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rounds_have_the_bits_of_compressor(case: Case) -> None:
    """Two workers; in the second round a gradient is not a number, with a sign, and residuals stay."""
    mine = [OperatorWorker(ops, case, worker) for worker in range(WORKERS)]
    theirs = [Compressor(case.config, workers=WORKERS, worker=worker, threads=1) for worker in range(WORKERS)]
    partitions = [compressor.partition("layer", case.coordinates) for compressor in theirs]
    random = torch.Generator().manual_seed(0)
    for round in range(3):
        gradients = [torch.randn(case.coordinates, generator=random).to(case.dtype) for _ in range(WORKERS)]
        if round == 1:
            gradients[0][1] = -torch.nan
        norms = [worker.norms(gradient) for worker, gradient in zip(mine, gradients, strict=True)]
        top = maxima(norms)
        assert top.isfinite().all() == (round != 1)
        codes = []
        for worker, compressor, partition, gradient, measured in zip(
            mine, theirs, partitions, gradients, norms, strict=True
        ):
            worker.set_round(round)
            assert np.abs(compressor.measure(partition, gradient, round=round)).tobytes() == bits(measured)
            encoded, kept, clamped = worker.encode(gradient, measured, top)
            assert compressor.encode(partition, top.numpy()).tobytes() == bits(encoded)
            assert int(kept) == (round != 1)
            assert int(clamped) == partition.clamped
            if worker.residual is not None:
                assert partition.residual is not None
                assert bits(worker.residual) == partition.residual.tobytes()
            codes.append(encoded)
        sums, average = mine[0].average(codes, top)
        out = torch.empty_like(average)
        theirs[0].decode(partitions[0], sums.numpy(), np.full(1, WORKERS, np.uint8), out)
        assert bits(average) == bits(out)


@pytest.mark.parametrize("coordinates", [0, 1, 64, 65, 1000, 8192, 8193, 40_001])
@pytest.mark.parametrize("block", [64, 1024, 16384])
def test_shapes_are_those_of_the_kernels(coordinates: int, block: int) -> None:
    assert blocks_of(coordinates, block) == len(_core.block_sizes(coordinates, block))
    assert padded_of(coordinates) == _core.padded_size(coordinates, block)
    assert packed_bytes(coordinates, 7) == _core.code_bytes(coordinates, 7)


def calls() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Every operator, and arguments."""
    worker = OperatorWorker(ops, CASE, 0)
    gradient = torch.randn(CASE.coordinates)
    norms = worker.norms(gradient)
    codes = worker.encode(gradient, norms, norms)[0].repeat(WORKERS, 1)
    sums = ops.lookup_sum(codes, worker.table, 8)
    encoding = (norms, norms, worker.table, worker.key, worker.threshold, worker.block)
    decoding = (norms, worker.table, worker.key, CASE.coordinates, WORKERS, worker.threshold, worker.block)
    return {
        "block_norms": (ops.block_norms, (gradient, worker.residual, worker.block)),
        "encode": (ops.encode, (gradient, worker.residual, *encoding)),
        "encode without feedback": (ops.encode, (gradient.half(), None, *encoding)),
        "lookup_sum": (ops.lookup_sum, (codes, worker.table, 16)),
        "decode": (ops.decode, (sums, *decoding, torch.bfloat16)),
    }


@COMPILES
@pytest.mark.parametrize("name", calls())
def test_torch_finds_nothing_wrong(name: str) -> None:
    """Effects as declared, shapes also of symbolic sizes, nothing for autograd."""
    function, arguments = calls()[name]
    operator = getattr(torch.ops.byteps_thc, function.__name__).default
    assert set(torch.library.opcheck(operator, arguments).values()) == {"SUCCESS"}


@COMPILES
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_functions_have_the_same_bits(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph for all rounds, whose number is a tensor; another for symbolic sizes."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    graphs = 0

    def count(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        return torch._dynamo.lookup_backend(backend)(graph, example)

    torch.compiler.reset()
    with torch._inductor.config.patch(compile_threads=1):
        direct, compiled = OperatorWorker(ops, CASE, 0), OperatorWorker(ops, CASE, 0)
        program = torch.compile(compiled.average_alone, fullgraph=True, backend=count)
        for number in range(3):
            gradient, round = torch.randn(CASE.coordinates), torch.tensor([number], dtype=torch.int32)
            assert bits(program(gradient, round)) == bits(direct.average_alone(gradient, round))
        assert graphs == 1
        assert compiled.residual is not None
        assert direct.residual is not None
        assert bits(compiled.residual) == bits(direct.residual)
        assert direct.residual.any()
        norms = torch.compile(ops.block_norms, fullgraph=True, backend=count, dynamic=True)
        for size in (3000, 5001):
            gradient = torch.randn(size)
            assert bits(norms(gradient, None, 1024)) == bits(ops.block_norms(gradient, None, 1024))
        assert graphs == 2


def test_there_is_no_gradient() -> None:
    gradient = torch.randn(1000, requires_grad=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        ops.block_norms(gradient, None, 64).sum().backward()


def test_what_does_not_fit_is_refused() -> None:
    worker = OperatorWorker(ops, CASE, 0)
    gradient = torch.randn(CASE.coordinates)
    norms = worker.norms(gradient)
    codes = worker.encode(gradient, norms, norms)[0]
    sums = torch.zeros(padded_of(CASE.coordinates), dtype=torch.uint8)

    def encode(**other: Any) -> None:
        arguments = {
            "gradient": gradient, "residual": worker.residual, "norms": norms, "max_norms": norms,
            "table": worker.table, "key": worker.key, "threshold": 2.0, "rotation_block": 1024,
        }  # fmt: skip
        ops.encode(**(arguments | other))

    def decode(aggregate: torch.Tensor, workers: int) -> None:
        last = (2.0, 1024, torch.float32)
        ops.decode(aggregate, norms, worker.table, worker.key, CASE.coordinates, workers, *last)

    refused: dict[str, Any] = {
        "gradient must be .*float64": lambda: ops.block_norms(gradient.double(), None, 64),
        "gradient must be .*not contiguous": lambda: ops.block_norms(gradient[::2], None, 64),
        r"residual must be contiguous float32 or bfloat16\[1609\]": lambda: encode(residual=torch.zeros(5)),
        "rotation_block must be a power of two": lambda: encode(rotation_block=1000),
        r"max_norms must be contiguous float32\[3\]": lambda: encode(max_norms=norms[:2].clone()),
        "key must be .*int32": lambda: encode(key=worker.key[:6]),
        "threshold must be positive": lambda: encode(threshold=0.0),
        "table must be what make_table": lambda: encode(table=worker.table[:1]),
        r"codes must be uint8\[workers, bytes\]": lambda: ops.lookup_sum(codes, worker.table, 8),
        "do not fit 8 bits": lambda: ops.lookup_sum(codes.repeat(60, 1), worker.table, 8),
        "value_bits must be 8 or 16": lambda: ops.lookup_sum(codes.repeat(2, 1), worker.table, 9),
        r"aggregate must be .*\[1664\]": lambda: decode(sums[:-1], 2),
        "1 to 1024 workers": lambda: decode(sums, 1025),
    }
    for words, call in refused.items():
        with pytest.raises((InputError, ConfigurationError), match=words):
            call()


def test_a_key_is_of_one_worker_and_gradient() -> None:
    """Stratified workers differ in the phase, gradients in the tensor, and rounds go beyond 31 bits."""
    resolved = ThcConfig(seed=1 << 40).resolve(WORKERS)
    keys = [ops.make_key(name, resolved, worker, "cpu") for name in ("a", "b") for worker in range(WORKERS)]
    assert len({bits(key) for key in keys}) == 4
    ops.set_round(keys[0], (1 << 32) - 1)
    assert keys[0][3] == -1
