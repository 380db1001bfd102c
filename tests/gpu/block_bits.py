"""Messages of ranks that decode each other's codes, against the bits of the kernels in host memory.

On the CPU with TRITON_INTERPRET=1, else on the GPU; kernel_bits.py says how cases are chosen and compared.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from kernel_bits import FLOATS, MismatchError, check_cases, place
from torch import Tensor

from byteps_thc._base.errors import InputError
from byteps_thc._engine.decoding.plan import PiecePlan, piece_plans
from byteps_thc._engine.device.self_check import different_gather, different_kernel, layout_of
from byteps_thc._engine.layout import Layout
from byteps_thc._scheme.decoding.codec import MessageLayout
from byteps_thc._scheme.decoding.gpu.block_batch import LAUNCHERS, BlockBatch, GatherBatch
from byteps_thc._scheme.decoding.settings import RankCodes, ResolvedRankCodes
from byteps_thc._scheme.shares import block_words

SEED, ROUND = 0xF23456789ABCDEF0, 2_900_000_000
LARGEST = (1 << 31) - 1
FINGERPRINT = 1_234_567_890
#: Kinds of blocks of gradients, in turn.
KINDS = ("normal", "one", "zero", "tiny", "large", "small", "normal", "equal")
#: Squares of the last two overflow and underflow in float32.
FAR = (*KINDS, "vast", "faint")
#: Kinds with blocks that make the average of a tile NaN.
NOT_FINITE = (*["normal"] * 17, "nan", *["normal"] * 40, "infinite", *["normal"] * 30, "huge", *KINDS)
#: Tensors of all sizes of blocks.
NARROW = (*range(1, 67), 700, 16, 64, 128, 2000)


@dataclass(frozen=True)
class Case:
    """ends: of tensors within a row. sharded: a row for each rank. exact: (start, stop) of exact columns.

    padding: columns that the last row lacks. kinds: of blocks. offset: elements by which gradients are unaligned.
    """

    columns: int
    ends: tuple[int, ...] = ()
    ranks: int = 2
    bits: int = 4
    down_bits: int = 4
    floats: str = "fp32"
    sharded: bool = False
    exact: tuple[tuple[int, int], ...] = ()
    padding: int = 0
    kinds: tuple[str, ...] = KINDS
    offset: int = 0

    @property
    def rows(self) -> int:
        return self.ranks if self.sharded else 1

    @cached_property
    def layout(self) -> Layout:
        ranks, dtype = self.ranks if self.sharded else None, FLOATS[self.floats]
        return layout_of(self.columns, self.ends, self.exact, dtype, ranks=ranks, padding=self.padding)

    @property
    def settings(self) -> ResolvedRankCodes:
        codes = RankCodes(bits=self.bits, down_bits=self.down_bits, seed=SEED)
        return codes.resolve(self.ranks, sharded=self.sharded)

    def gradient(self, rank: int) -> Tensor:
        rng = np.random.default_rng(rank)
        rows = [self._row(rng, rank + row) for row in range(self.rows)]
        return torch.from_numpy(np.concatenate(rows)).to(FLOATS[self.floats])

    def _row(self, rng: np.random.Generator, rank: int) -> np.ndarray[Any, Any]:
        x = rng.standard_normal(self.columns).astype(np.float32)
        scales = {"zero": 0.0, "tiny": 1e-35, "small": 1e-9, "large": 1e4, "faint": 1e-20, "vast": 1e22, "huge": 1e35}
        for number, word in enumerate(block_words(self.layout.tensors).tolist()):
            # A block is zero on all ranks, or on one alone, and so on.
            kind = self.kinds[(number + (rank if number > len(self.kinds) else 0)) % len(self.kinds)]
            block = x[word >> 7 :][: word & 127]
            block *= np.float32(scales.get(kind, 1.0))
            if kind == "one":
                block[1:] = 0
            if kind == "equal":
                block[:] = 1
            if kind in ("nan", "infinite"):
                block[len(block) // 3] = np.nan if kind == "nan" else np.inf
        return x


def messages(count: int, layout: MessageLayout) -> Tensor:
    return torch.full((count, layout.size_bytes), 0xA5, dtype=torch.uint8)


def batch_of(case: Case, device: str) -> tuple[BlockBatch, PiecePlan]:
    [plan] = piece_plans(case.layout, case.settings, whole=True)
    batch = BlockBatch(
        plan.shards, 0, case.columns, seed=SEED, bits=case.bits, down_bits=case.settings.down_bits,
        layouts=(plan.up, plan.down), state=torch.tensor([0, 0, LARGEST, 0], dtype=torch.int32, device=device),
        differ=torch.zeros((), dtype=torch.bool, device=device), exact=case.exact,
    )  # fmt: skip
    return batch, plan


def check_round(case: Case, device: str, rng: np.random.Generator) -> None:  # noqa: ARG001
    gradients = [case.gradient(rank) for rank in range(case.ranks)]
    kernel = different_kernel(case.layout, case.settings, torch.device(device), gradients, case.offset)
    if kernel is not None:
        raise MismatchError(kernel)


def check_corruption(case: Case, device: str, rng: np.random.Generator) -> None:
    """The comparison names the first kernel with other bits."""
    calls = {"encode": "encode", "average": "decode"} if case.sharded else {name: name for name in LAUNCHERS}
    for kernel, call in calls.items():
        with patch.object(BlockBatch, call, corrupted(getattr(BlockBatch, call))), refused(MismatchError, kernel):
            check_round(case, device, rng)


def corrupted(launch: Callable[..., None]) -> Callable[..., None]:
    def corrupt(batch: BlockBatch | GatherBatch, source: Tensor, to: Tensor, *others: Any) -> None:
        launch(batch, source, to, *others)
        to.view(-1)[-1:] += 1

    return corrupt


def check_not_finite(case: Case, device: str, rng: np.random.Generator) -> None:
    """A round in which some tiles are NaN, and others are not."""
    check_round(case, device, rng)


def check_agreement(case: Case, device: str, rng: np.random.Generator) -> None:  # noqa: ARG001
    """Averages are NaN from the first round on in which fingerprints differ, and its header stays."""
    batch, plan = batch_of(case, device)
    last = case.ranks - 1
    for number, other in enumerate((FINGERPRINT, FINGERPRINT + 9, FINGERPRINT)):
        sent = messages(case.ranks, plan.up).to(device)
        header = (number, ROUND & LARGEST, FINGERPRINT, LARGEST - FINGERPRINT)
        batch.encode(case.gradient(0).to(device), sent, header, number)
        received = sent[:1].repeat(case.ranks, 1)
        received[last, :8].view(torch.int32).copy_(torch.tensor([other, LARGEST - other]))
        out = torch.full((case.columns,), 7.0, device=device)
        if case.sharded:
            batch.decode(received, out)
        else:
            own = messages(1, plan.down).to(device)
            batch.recode(received, own[0])
            batch.decode(own.repeat(case.ranks, 1), out)
        if bool(out.isnan().all()) != (number > 0) or bool(out.isnan().any()) != (number > 0):
            raise MismatchError(f"round {number}: averages are {out[:4].tolist()}")
        state, differ = batch.agreement
        wanted = [min(number, 1), ROUND & LARGEST, FINGERPRINT + 9 * (number > 0), LARGEST - FINGERPRINT]
        if state.tolist() != wanted or bool(differ) != (number > 0):
            raise MismatchError(f"round {number}: state {state.tolist()}, not {wanted}")


def check_gather(case: Case, device: str, rng: np.random.Generator) -> None:  # noqa: ARG001
    """A shard of each rank, to its message, and all messages to all shards; other bits of a kernel are told."""
    case = replace(case, sharded=True)
    settings = RankCodes(bits=case.bits, seed=SEED).resolve(1, sharded=True)
    gradients = [case.gradient(rank) for rank in range(case.ranks)]

    def compare() -> str | None:
        return different_gather(case.layout, settings, torch.device(device), gradients, case.offset)

    if (kernel := compare()) is not None:
        raise MismatchError(kernel)
    for name in ("encode", "decode"):
        with patch.object(GatherBatch, name, corrupted(getattr(GatherBatch, name))):
            if compare() != f"gather's {name}":
                raise MismatchError(f"a corrupted {name} is not told")


def check_refusals(case: Case, device: str, rng: np.random.Generator) -> None:  # noqa: ARG001
    """Calls that do not fit."""
    batch, plan = batch_of(case, device)
    gradient, sent = case.gradient(0).to(device), messages(case.ranks, plan.up).to(device)
    with refused(InputError, "gradient must be contiguous"):
        batch.encode(gradient[1:], sent, (0, 0, 0, 0), 0)
    with refused(InputError, "sent must be contiguous uint8"):
        batch.encode(gradient, sent[:1], (0, 0, 0, 0), 0)
    with refused(InputError, "sent must begin at a multiple of 16 bytes"):
        batch.encode(gradient, place(sent, device, 4), (0, 0, 0, 0), 0)


@contextmanager
def refused(kind: type[Exception], text: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        if text not in str(error):
            raise MismatchError(f"the error is {error}, without {text}") from error
    else:
        raise MismatchError(f"not refused: {text}")


def narrow_case(**settings: Any) -> Case:
    *ends, columns = itertools.accumulate(NARROW)
    return Case(columns, ends=tuple(ends), **settings)


def small_cases() -> Iterator[tuple[Any, Case]]:
    yield check_round, Case(3 * 2048, ranks=1)
    yield check_round, narrow_case(ranks=3, down_bits=3)
    beside = narrow_case(exact=((3, 30), (2400, 2500)), offset=1)
    yield check_round, replace(beside, floats="bf16", ranks=3, bits=8, down_bits=1)
    yield check_round, replace(beside, floats="fp16", sharded=True, bits=3, padding=70)
    yield check_round, Case(2000, sharded=True, padding=1990, bits=5, ranks=3)
    yield check_round, Case(40 * 96, ends=tuple(range(96, 40 * 96, 96)), bits=2, down_bits=3, kinds=FAR)
    yield check_round, Case(1024 + 65, ranks=5, bits=7, down_bits=8, floats="fp16")
    yield check_round, Case(70, ranks=3, bits=1, down_bits=2, exact=((3, 5),))  # owners of nothing
    yield check_not_finite, Case(64 * len(NOT_FINITE), kinds=NOT_FINITE, ranks=2, down_bits=2)
    yield check_not_finite, Case(64 * len(NOT_FINITE), kinds=NOT_FINITE, sharded=True, bits=3, floats="bf16")
    plain = Case(128, ends=(64,), kinds=("normal",), exact=((3, 5),))
    yield check_gather, narrow_case(exact=((3, 30), (2400, 2500)), offset=1, ranks=3, bits=8, floats="bf16", padding=70)
    yield check_gather, Case(2000, padding=1990, bits=5, ranks=3)
    yield check_agreement, plain
    yield check_agreement, replace(plain, sharded=True)
    yield check_refusals, plain
    yield check_corruption, plain
    yield check_corruption, replace(plain, sharded=True)


def large_cases() -> Iterator[tuple[Any, Case]]:
    yield from small_cases()
    for bits in range(1, 9):
        for floats in FLOATS:
            ends = tuple(range(100 * bits + 1, 200_000, 30_011))
            case = Case(200_003, ends=ends, bits=bits, down_bits=9 - bits, floats=floats, offset=bits % 2, ranks=4)
            yield check_round, case
            yield check_round, replace(case, sharded=True, ranks=3, padding=90_000)
    for bits in range(1, 9):
        floats = ("fp32", "bf16")[:: 1 - bits % 2 * 2]
        yield check_not_finite, narrow_case(bits=bits, down_bits=9 - bits, floats=floats[0], ranks=3, kinds=NOT_FINITE)
        yield check_not_finite, narrow_case(bits=bits, floats=floats[1], sharded=True, kinds=NOT_FINITE)
    for width in (16, 20, 32, 48, 96, 272):
        yield check_round, Case(30_000 * width, ends=tuple(range(width, 30_000 * width, width)), ranks=4)
    for ranks in (8, 64):
        yield check_round, Case((1 << 22) + 1999, ranks=ranks)


if __name__ == "__main__":
    sys.exit(check_cases(small_cases, large_cases))
