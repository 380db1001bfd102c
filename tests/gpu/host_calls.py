"""Calls of the host for a bucket of DDP on a device, and for a group of FSDP2: launches, collectives, anything else.

One rank of many, which sends to itself; kernels in the interpreter. Fails if a case has more calls than said.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from recorded_calls import count_as_one, counted_calls
from torch import Tensor

from byteps_thc import CompressionPolicy
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice, ShardMatrix
from byteps_thc._engine.factory import rank_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._net.communicator import Communicator, Waitable
from byteps_thc._scheme.decoding.settings import RankCodes

POLICY = CompressionPolicy(bypass_elements=100)
#: Pieces of an engine in host memory would be several in all cases.
_SMALL: dict[str, Any] = {"partition_bytes": 1 << 13}


class Done(Waitable):
    def wait(self) -> None:
        pass


class EchoCommunicator(Communicator):
    """All ranks send this rank's messages, and a collective is one of counted_calls()."""

    def max_(self, tensor: Tensor) -> Waitable:
        return self._count(lambda: tensor)

    def sum_(self, tensor: Tensor) -> Waitable:
        return self._count(lambda: tensor)

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        return self._count(lambda: output.copy_(source))

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        return self._count(lambda: output.view(-1, source.numel()).copy_(source.clone().unsqueeze(0)))

    def broadcast(self, tensor: Tensor) -> Waitable:
        return self._count(lambda: tensor)

    def _count(self, work: Callable[[], object]) -> Waitable:
        count_as_one("collective", lambda: (work(), None)[1])
        return Done()


def engine_of(codes: RankCodes, ranks: int, *, sharded: bool = False) -> FlatEngine:
    settings = codes.resolve(ranks, sharded=sharded)
    return rank_engine(settings, 1, POLICY, [EchoCommunicator()], device=torch.device("cpu"), sharded=sharded)


def calls_of(engine: FlatEngine, reduce: Callable[[], object]) -> Counter[str]:
    """Return the calls for a gradient that was reduced before: twice, as codes travel from two places in turn."""
    for _ in range(2):
        engine.start_step()
        reduce()
    engine.start_step()
    with counted_calls() as calls:
        reduce()
    return Counter(calls)


def bucket(sizes: list[int], *, row: int = 0) -> Counter[str]:
    """A bucket of DDP, with parameters of given sizes. row: elements of rows with scales of their own."""
    engine = engine_of(RankCodes(**_SMALL), 4)
    edges = itertools.pairwise([0, *itertools.accumulate(sizes)])
    parts = tuple(ParameterSlice(f"p{number}", *edge, row=row) for number, edge in enumerate(edges))
    gradient = torch.randn(sum(sizes))
    calls = calls_of(engine, lambda: engine.all_reduce(GradientBuffer("b", gradient, parts)).wait())
    assert gradient.isfinite().all()
    return calls


def group(ranks: int) -> Counter[str]:
    """A group of FSDP2: columns of two parameters, of a small one, and padding, in a row for each rank."""
    engine = engine_of(RankCodes(**_SMALL), ranks, sharded=True)
    columns, spans = 1203, ((0, 700), (730, 1200))
    compressed = tuple(
        ParameterSlice(f"p{number}", row * columns + start, row * columns + stop)
        for row in range(ranks)
        for number, (start, stop) in enumerate(spans)
    )
    matrix = ShardMatrix("m", ranks, columns, compressed, exact=((700, 730),), parameters=("p0", "p1", "small"))
    gradient, output = torch.randn(matrix.size), torch.full((columns,), torch.nan)
    calls = calls_of(engine, lambda: engine.reduce_scatter("m", matrix, gradient, output).wait())
    assert output[:1200].isfinite().all()
    return calls


def main() -> None:
    cases: list[tuple[str, Callable[[], Counter[str]], int, int]] = [
        ("a bucket", lambda: bucket([5000, 30, 3000]), 3, 2),
        ("a bucket, nothing exact", lambda: bucket([5000, 3000]), 3, 2),
        ("a bucket, rows of embeddings", lambda: bucket([5000, 30], row=500), 3, 2),
        *[(f"a group of {ranks} ranks", partial(group, ranks), 2, 1) for ranks in (2, 8)],
    ]
    for name, count, kernels, collectives in cases:
        calls = count()
        assert calls == {"kernel": kernels, "collective": collectives}, (name, calls)
        print(f"{name}: {kernels} launches, {collectives} collectives", flush=True)


if __name__ == "__main__":
    main()
