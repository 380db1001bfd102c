"""Messages of ranks that decode each other's codes, against the bits of the kernels in host memory.

On the CPU with TRITON_INTERPRET=1, else on the GPU; kernel_bits.py says how cases are chosen and compared. The kernels
in host memory have the bits of tests/lib/block_reference.py (tests/reference/test_blocks.py).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from kernel_bits import FLOATS, MismatchError, check_cases, place, same
from recorded_calls import counted_calls
from torch import Tensor

from byteps_thc._native import _core
from byteps_thc._scheme.arrays import I64, gradient_view
from byteps_thc._scheme.block_plan import HEADER_BYTES, MessageLayout, Shard
from byteps_thc._scheme.errors import InputError
from byteps_thc._scheme.gpu.block_batch import BlockBatch
from byteps_thc._scheme.shares import block_words, row_shards, share_out, without_gaps

SEED, ROUND, TENSOR = 0xF23456789ABCDEF0, 2_900_000_000, 3_000_000_007
LARGEST = (1 << 31) - 1
FINGERPRINT = 1_234_567_890
#: What blocks of gradients are made of, in turn.
KINDS = ("normal", "one", "zero", "tiny", "large", "small", "normal", "equal")
#: Squares of the last two overflow and underflow in float32.
FAR = (*KINDS, "vast", "faint")
#: A tile with one of these averages to NaN.
NOT_FINITE = (*["normal"] * 17, "nan", *["normal"] * 40, "infinite", *["normal"] * 30, "huge", *KINDS)
#: Tensors of all sizes of blocks.
NARROW = (*range(1, 67), 700, 16, 64, 128, 2000)


@dataclass(frozen=True)
class Case:
    """A piece of ranks.

    ends: ends of tensors within a row. sharded: a row for each rank. exact: (start, stop) of exact columns. padding:
    columns that the last row lacks at its end. kinds: kinds of blocks. offset: elements by which gradients are not
    aligned.
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
    words: I64 = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        edges = sorted({0, self.columns, *self.ends, *itertools.chain(*self.exact)})
        spans = [span for span in itertools.pairwise(edges) if not any(a <= span[0] < b for a, b in self.exact)]
        object.__setattr__(self, "words", block_words(spans))

    @property
    def rows(self) -> int:
        return self.ranks if self.sharded else 1

    def tables(self) -> list[_core.BlockTable]:
        """The blocks of each row."""
        gap = (self.columns - self.padding, self.columns)
        words = [self.words] * (self.rows - 1) + [without_gaps(self.words, [gap], 0)]
        return [_core.BlockTable(own, row * len(own)) for row, own in enumerate(words)]

    def shards(self) -> list[Shard]:
        exact = sum(stop - start for start, stop in self.exact)
        if self.sharded:
            return row_shards(TENSOR, self.tables(), exact)
        return share_out(TENSOR, self.tables()[0], exact, self.ranks)

    def gradient(self, rank: int) -> Tensor:
        rng = np.random.default_rng(rank)
        rows = [self._row(rng, rank + row) for row in range(self.rows)]
        return torch.from_numpy(np.concatenate(rows)).to(FLOATS[self.floats])

    def _row(self, rng: np.random.Generator, rank: int) -> np.ndarray[Any, Any]:
        x = rng.standard_normal(self.columns).astype(np.float32)
        scales = {"zero": 0.0, "tiny": 1e-35, "small": 1e-9, "large": 1e4, "faint": 1e-20, "vast": 1e22, "huge": 1e35}
        for number, word in enumerate(self.words.tolist()):
            # Blocks of all ranks are zero, and those of one alone are, and so on.
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


class Host:
    """What the kernels in host memory make of a case. Messages are full of rubbish first."""

    def __init__(self, case: Case) -> None:
        self.case, self.shards = case, case.shards()
        self.up, self.down = (MessageLayout.of(self.shards, bits) for bits in (case.bits, case.down_bits))

    def encode(self, gradient: Tensor, rank: int, fingerprint: int) -> Tensor:
        case, rows = self.case, gradient.view(self.case.rows, -1)
        values = [rows[:, start:stop].float() for start, stop in case.exact]
        exact = torch.cat([rows[:, :0].float(), *values], 1).view(-1)
        sent = messages(case.ranks, self.up)
        for shard, message in zip(self.shards, sent, strict=True):
            words, codes, scales = self._parts(message, shard, self.up, case.bits)
            message[:16].view(torch.int32)[:] = torch.tensor([fingerprint, LARGEST - fingerprint, 0, 0])
            words[:] = exact[shard.exact]
            _core.encode_blocks(
                gradient_view(rows[shard.row]), codes.numpy(), scales.numpy(), rank=rank, ranks=case.ranks,
                bits=case.bits, **self._keywords(shard),
            )  # fmt: skip
        return sent

    def recode(self, received: Tensor, rank: int) -> Tensor:
        case, shard = self.case, self.shards[rank]
        own = messages(1, self.down)[0]
        words, codes, scales = self._parts(own, shard, self.down, case.down_bits)
        own[:16].view(torch.int32)[:2] = received[:, :8].view(torch.int32).amax(0)
        own[8:16] = 0
        words[:] = self._exact(received, shard)
        _core.recode_blocks(
            *self._received(received, shard), codes.numpy(), scales.numpy(), bits=case.bits, down_bits=case.down_bits,
            **self._keywords(shard),
        )  # fmt: skip
        return own

    def decode(self, gathered: Tensor) -> Tensor:
        case, exact = self.case, []
        out = untouched(case)
        for shard, message in zip(self.shards, gathered, strict=True):
            words, codes, scales = self._parts(message, shard, self.down, case.down_bits)
            exact.append(words)
            _core.decode_blocks(
                codes.numpy()[np.newaxis], scales.numpy()[np.newaxis], gradient_view(out), bits=case.down_bits,
                down=True, **self._keywords(shard),
            )  # fmt: skip
        return self._put(out, torch.cat(exact))

    def average(self, received: Tensor, rank: int) -> Tensor:
        shard, out = self.shards[rank], untouched(self.case)
        _core.decode_blocks(
            *self._received(received, shard), gradient_view(out), bits=self.case.bits, **self._keywords(shard)
        )
        return self._put(out, self._exact(received, shard))

    def _put(self, out: Tensor, exact: Tensor) -> Tensor:
        columns = [column for start, stop in self.case.exact for column in range(start, stop)]
        out[columns] = exact.to(out.dtype)
        return out

    def _received(self, received: Tensor, shard: Shard) -> tuple[Any, Any]:
        parts = [self._parts(message, shard, self.up, self.case.bits)[1:] for message in received]
        codes, scales = (np.stack([part.numpy() for part in own]) for own in zip(*parts, strict=True))
        return codes, scales

    def _exact(self, received: Tensor, shard: Shard) -> Tensor:
        values = [self._parts(message, shard, self.up, self.case.bits)[0] for message in received]
        return torch.from_numpy(np.add.accumulate(np.stack(values), axis=0)[-1] / np.float32(len(values)))

    def _keywords(self, shard: Shard) -> dict[str, Any]:
        return {"blocks": shard.blocks, "seed": SEED, "tensor": shard.tensor, "round": ROUND}

    @staticmethod
    def _parts(message: Tensor, shard: Shard, layout: MessageLayout, bits: int) -> tuple[Tensor, Tensor, Tensor]:
        """Exact values, codes and scales."""
        exact = message[HEADER_BYTES:][: 4 * (shard.exact.stop - shard.exact.start)].view(torch.float32)
        codes = message[layout.codes_at :][: 8 * bits * len(shard.blocks)]
        return exact, codes, message[layout.scales_at :][: _core.scale_bytes(len(shard.blocks))]


def messages(count: int, layout: MessageLayout) -> Tensor:
    return torch.full((count, layout.size_bytes), 0xA5, dtype=torch.uint8)


def untouched(case: Case) -> Tensor:
    return torch.full((case.columns,), 7.0, dtype=FLOATS[case.floats])


def header_of(fingerprint: int) -> tuple[int, int, int, int]:
    return 3, ROUND & LARGEST, fingerprint, LARGEST - fingerprint


def batches_of(case: Case, host: Host, device: str) -> dict[int, BlockBatch]:
    """Those of the first and of the last rank."""
    return {
        rank: BlockBatch(
            host.shards, rank, case.columns, seed=SEED, bits=case.bits,
            down_bits=None if case.sharded else case.down_bits, layouts=(host.up, host.down),
            state=torch.tensor([0, 0, LARGEST, 0], dtype=torch.int32, device=device),
            differ=torch.zeros((), dtype=torch.bool, device=device), exact=case.exact,
        )
        for rank in (0, case.ranks - 1)
    }  # fmt: skip


def one_launch(calls: Sequence[str]) -> None:
    if [*calls] != ["kernel"]:
        raise MismatchError(f"calls: {calls}, not one launch")


def check_round(case: Case, device: str, rng: np.random.Generator) -> None:  # noqa: ARG001
    host = Host(case)
    batches = batches_of(case, host, device)
    sent = []
    for rank in range(case.ranks):
        gradient = case.gradient(rank)
        sent.append(host.encode(gradient, rank, FINGERPRINT))
        if rank not in batches:
            continue
        mine, on_device = messages(case.ranks, host.up).to(device), place(gradient, device, case.offset)
        with counted_calls() as calls:
            batches[rank].encode(on_device, mine, header_of(FINGERPRINT), ROUND)
        one_launch(calls)
        same(f"sent of rank {rank}", mine, sent[-1].numpy())
    received = torch.stack(sent, 1)
    out = place(untouched(case), device, case.offset)
    if case.sharded:
        for rank, batch in batches.items():
            arrived = received[rank].contiguous().to(device)
            out.fill_(7)
            with counted_calls() as calls:
                batch.average(arrived, out)
            one_launch(calls)
            same_floats("average", out, host.average(received[rank], rank))
        return
    gathered = []
    for rank in range(case.ranks):
        gathered.append(host.recode(received[rank], rank))
        if rank not in batches:
            continue
        own = messages(1, host.down)[0].to(device)
        arrived = received[rank].contiguous().to(device)
        with counted_calls() as calls:
            batches[rank].recode(arrived, own)
        one_launch(calls)
        same(f"sent by owner {rank}", own, gathered[-1].numpy())
    arrived = torch.stack(gathered).to(device)
    with counted_calls() as calls:
        batches[case.ranks - 1].decode(arrived, out)
    one_launch(calls)
    same_floats("average", out, host.decode(torch.stack(gathered)))


def same_floats(what: str, got: Tensor, wanted: Tensor) -> None:
    same(what, got, (wanted.view(torch.uint16) if wanted.dtype == torch.bfloat16 else wanted).numpy())


def check_not_finite(case: Case, device: str, rng: np.random.Generator) -> None:
    """A round in which some tiles are NaN, and others are not."""
    check_round(case, device, rng)


def check_agreement(case: Case, device: str, rng: np.random.Generator) -> None:  # noqa: ARG001
    """Averages are NaN from the first round on in which fingerprints differ, and its header stays."""
    host = Host(case)
    batches = batches_of(case, host, device)
    last = case.ranks - 1
    for number, other in enumerate((FINGERPRINT, FINGERPRINT + 9, FINGERPRINT)):
        sent = messages(case.ranks, host.up).to(device)
        _, *words = header_of(FINGERPRINT)
        batches[0].encode(case.gradient(0).to(device), sent, (number, words[0], words[1], words[2]), number)
        received = sent[:1].repeat(case.ranks, 1)
        received[last, :8].view(torch.int32).copy_(torch.tensor([other, LARGEST - other]))
        out = torch.full((case.columns,), 7.0, device=device)
        if case.sharded:
            batches[0].average(received, out)
        else:
            own = messages(1, host.down).to(device)
            batches[0].recode(received, own[0])
            batches[0].decode(own.repeat(case.ranks, 1), out)
        if bool(out.isnan().all()) != (number > 0) or bool(out.isnan().any()) != (number > 0):
            raise MismatchError(f"round {number}: averages are {out[:4].tolist()}")
        state, differ = batches[0].agreement
        wanted = [min(number, 1), ROUND & LARGEST, FINGERPRINT + 9 * (number > 0), LARGEST - FINGERPRINT]
        if state.tolist() != wanted or bool(differ) != (number > 0):
            raise MismatchError(f"round {number}: state {state.tolist()}, not {wanted}")


def check_refusals(case: Case, device: str, rng: np.random.Generator) -> None:  # noqa: ARG001
    """Calls that do not fit. A batch of an all-reduce has no average(), and one of rows no recode()."""
    host = Host(case)
    batch, of_rows = (batches_of(one, Host(one), device)[0] for one in (case, replace(case, sharded=True)))
    gradient, sent = case.gradient(0).to(device), messages(case.ranks, host.up).to(device)
    with refused(InputError, "gradient must be contiguous"):
        batch.encode(gradient[1:], sent, (0, 0, 0, 0), 0)
    with refused(InputError, "sent must be contiguous uint8"):
        batch.encode(gradient, sent[:1], (0, 0, 0, 0), 0)
    with refused(InputError, "sent must begin at a multiple of 16 bytes"):
        batch.encode(gradient, place(sent, device, 4), (0, 0, 0, 0), 0)
    with refused(InputError, "use recode"):
        batch.average(sent, gradient)
    with refused(InputError, "use average"):
        of_rows.recode(sent, sent[0])
    with refused(InputError, "use average"):
        of_rows.decode(sent, gradient)


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
    yield check_agreement, plain
    yield check_agreement, replace(plain, sharded=True)
    yield check_refusals, plain


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
