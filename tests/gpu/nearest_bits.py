"""Messages of ranks that decode each other's codes, against the bits of the kernels in host memory.

On the CPU with TRITON_INTERPRET=1, else on the GPU; kernel_bits.py says how cases are chosen and compared. The kernels
in host memory have the bits of tests/lib/nearest_reference.py (tests/reference/test_nearest.py).
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
from kernel_bits import FLOATS, MismatchError, check_cases, same
from recorded_calls import counted_calls
from torch import Tensor

from byteps_thc._native import _core
from byteps_thc._scheme.arrays import gradient_view
from byteps_thc._scheme.errors import ConfigurationError, InputError
from byteps_thc._scheme.gpu.nearest_batch import NearestBatch
from byteps_thc._scheme.tables.points import Points, lloyd_max, staggered

SEED, ROUND = 0xF23456789ABCDEF0, 2_900_000_000
LARGEST = (1 << 31) - 1
FINGERPRINT = 1_234_567_890
#: What blocks of gradients are made of, in turn.
KINDS = ("normal", "normal", "one", "zero", "tiny", "large", "nan", "small", "normal", "infinite")
#: Tensors and rows of a gradient whose blocks are mostly of 16 and 32: codes of all others begin anywhere, too.
NARROW = (16, 8192, 9, 8192, *[16] * 270, *[20] * 3, *[32] * 3, *[48] * 3, *range(1, 64), 700, 16, 8192)


@dataclass(frozen=True)
class Shard:
    tensor: int
    row: int
    blocks: _core.RotationBlocks
    exact: slice


@dataclass(frozen=True)
class Layout:
    """A message: header, scales, exact values, codes."""

    exact_at: int
    codes_at: int
    size_bytes: int

    @classmethod
    def of(cls, shards: Sequence[Shard], bits: int) -> Layout:
        exact_at = 16 + 4 * max(len(shard.blocks) for shard in shards)
        codes_at = exact_at + 4 * max(shard.exact.stop - shard.exact.start for shard in shards)
        size = codes_at + max(_core.code_bytes(shard.blocks.padded, bits) for shard in shards)
        return cls(exact_at, codes_at, -(-size // 16) * 16)


@dataclass(frozen=True)
class Case:
    """A piece of ranks. sharded: a row for each rank. exact, holes: (start, stop) within a row, the second in the last
    row alone. kinds: of blocks. offset: elements by which gradients are not aligned.
    """

    columns: int
    block: int = 8192
    ends: tuple[int, ...] = ()
    ranks: int = 2
    bits: int = 5
    down_bits: int = 5
    floats: str = "fp32"
    sharded: bool = False
    exact: tuple[tuple[int, int], ...] = ()
    holes: tuple[tuple[int, int], ...] = ()
    kinds: tuple[str, ...] = KINDS
    offset: int = 0
    blocks: _core.RotationBlocks = field(init=False)

    def __post_init__(self) -> None:
        ends = np.array(self.ends, np.uint64)
        object.__setattr__(self, "blocks", _core.RotationBlocks(self.columns, self.block, ends))

    @property
    def rows(self) -> int:
        return self.ranks if self.sharded else 1

    def shards(self) -> list[Shard]:
        exact = [column for start, stop in self.exact for column in range(start, stop)]
        if self.sharded:
            own = len(exact)
            return [Shard(77 + row, row, self.blocks, slice(row * own, (row + 1) * own)) for row in range(self.rows)]
        cuts = np.linspace(0, len(self.blocks), self.ranks + 1).astype(int)
        firsts = np.append(self.blocks.array()[:, 0], self.columns)[cuts]
        at = np.searchsorted(exact, firsts)
        return [
            Shard(77, 0, self.blocks.part(*map(int, cut)), slice(*map(int, own)))
            for cut, own in zip(itertools.pairwise(cuts), itertools.pairwise(at), strict=True)
        ]

    def points(self) -> list[Points]:
        return [staggered(self.bits, rank, self.ranks) for rank in range(self.ranks)]

    def gradient(self, rank: int) -> Tensor:
        rng = np.random.default_rng(rank)
        rows = [self._row(rng, rank + row) for row in range(self.rows)]
        return torch.from_numpy(np.concatenate(rows)).to(FLOATS[self.floats])

    def _row(self, rng: np.random.Generator, rank: int) -> np.ndarray[Any, Any]:
        x = rng.standard_normal(self.columns).astype(np.float32)
        scales = {"zero": 0.0, "tiny": 1e-35, "small": 1e-25, "large": 1e20}
        for number, (first, _, _, used) in enumerate(self.blocks.array().tolist()):
            # Blocks of all ranks are zero, and those of one alone are, and so on.
            kind = self.kinds[(number + (rank if number > len(self.kinds) else 0)) % len(self.kinds)]
            block = x[first : first + used]
            block *= np.float32(scales.get(kind, 1.0))
            if kind == "one":
                block[1:] = 0
            if kind in ("nan", "infinite"):
                block[used // 3] = np.nan if kind == "nan" else np.inf
        return x


class Host:
    """What the kernels in host memory make of a case. Messages are full of rubbish first."""

    def __init__(self, case: Case) -> None:
        self.case, self.shards = case, case.shards()
        self.up, self.down = Layout.of(self.shards, case.bits), Layout.of(self.shards, case.down_bits)
        self._points = case.points()

    def encode(self, gradient: Tensor, rank: int, fingerprint: int) -> Tensor:
        case, own = self.case, self._points[rank]
        whole = gradient.clone().view(case.rows, -1)
        flat = whole.view(-1).float()
        values = [whole[:, start:stop].float() for start, stop in case.exact]
        exact = torch.cat(values, 1).view(-1) if values else flat[:0]
        for start, stop in holes_of(case):
            whole.view(-1)[start:stop] = 0
        sent = messages(case.ranks, self.up)
        for shard, message in zip(self.shards, sent, strict=True):
            scales, words, codes = self._parts(message, shard, self.up, case.bits)
            message[:16].view(torch.int32)[:] = torch.tensor([fingerprint, LARGEST - fingerprint, 0, 0])
            words[:] = exact[shard.exact]
            array = shard.blocks.array()
            columns = slice(array[0, 0], array[-1, 0] + array[-1, 3]) if len(array) else slice(0, 0)
            _core.encode_nearest(
                gradient_view(whole[shard.row][columns]), codes.numpy(), scales.numpy(), edges=own.edges,
                points=own.points, **self._keywords(shard),
            )  # fmt: skip
        return sent

    def recode(self, received: Tensor, rank: int) -> Tensor:
        case, shard, down = self.case, self.shards[rank], lloyd_max(self.case.down_bits)
        own = messages(1, self.down)[0]
        scales, words, codes = self._parts(own, shard, self.down, case.down_bits)
        own[:16].view(torch.int32)[:2] = received[:, :8].view(torch.int32).amax(0)
        own[8:16] = 0
        words[:] = self._exact(received, shard, self.up)
        _core.recode_nearest(
            *self._received(received, shard), codes.numpy(), scales.numpy(), points=self._all_points(),
            down_edges=down.edges, down_points=down.points, **self._keywords(shard),
        )  # fmt: skip
        return own

    def decode(self, gathered: Tensor) -> Tensor:
        case, down = self.case, lloyd_max(self.case.down_bits)
        out, exact = torch.full((case.columns,), 7.0, dtype=FLOATS[case.floats]), []
        for shard, message in zip(self.shards, gathered, strict=True):
            scales, words, codes = self._parts(message, shard, self.down, case.down_bits)
            exact.append(words)
            array = shard.blocks.array()
            columns = slice(array[0, 0], array[-1, 0] + array[-1, 3]) if len(array) else slice(0, 0)
            _core.decode_nearest(
                codes.numpy()[np.newaxis], scales.numpy()[np.newaxis], gradient_view(out[columns]),
                points=down.points[np.newaxis], down=True, **self._keywords(shard),
            )  # fmt: skip
        return self._put(out, torch.cat(exact))

    def average(self, received: Tensor, rank: int) -> Tensor:
        case, shard = self.case, self.shards[rank]
        out = torch.full((case.columns,), 7.0, dtype=FLOATS[case.floats])
        _core.decode_nearest(
            *self._received(received, shard), gradient_view(out), points=self._all_points(), **self._keywords(shard)
        )
        return self._put(out, self._exact(received, shard, self.up))

    def _put(self, out: Tensor, exact: Tensor) -> Tensor:
        columns = [column for start, stop in self.case.exact for column in range(start, stop)]
        out[columns] = exact.to(out.dtype)
        return out

    def _all_points(self) -> np.ndarray[Any, Any]:
        return np.stack([own.points for own in self._points])

    def _received(self, received: Tensor, shard: Shard) -> tuple[Any, Any]:
        code_bytes, up = _core.code_bytes(shard.blocks.padded, self.case.bits), self.up
        codes = received[:, up.codes_at : up.codes_at + code_bytes]
        return codes.numpy(), received[:, 16 : 16 + 4 * len(shard.blocks)].view(torch.float32).numpy()

    def _exact(self, received: Tensor, shard: Shard, layout: Layout) -> Tensor:
        values = [self._parts(message, shard, layout, self.case.bits)[1] for message in received]
        return torch.from_numpy(np.add.accumulate(np.stack(values), axis=0)[-1] / np.float32(len(values)))

    def _keywords(self, shard: Shard) -> dict[str, Any]:
        return {"blocks": shard.blocks, "seed": SEED, "tensor": shard.tensor, "round": ROUND}

    @staticmethod
    def _parts(message: Tensor, shard: Shard, layout: Layout, bits: int) -> tuple[Tensor, Tensor, Tensor]:
        exact_end = layout.exact_at + 4 * (shard.exact.stop - shard.exact.start)
        return (
            message[16 : 16 + 4 * len(shard.blocks)].view(torch.float32),
            message[layout.exact_at : exact_end].view(torch.float32),
            message[layout.codes_at : layout.codes_at + _core.code_bytes(shard.blocks.padded, bits)],
        )


def messages(count: int, layout: Layout) -> Tensor:
    return torch.full((count, layout.size_bytes), 0xA5, dtype=torch.uint8)


def holes_of(case: Case) -> list[tuple[int, int]]:
    """What is not compressed, in all rows one behind the other."""
    exact = [(row * case.columns + start, row * case.columns + stop) for row in range(case.rows)
             for start, stop in case.exact]  # fmt: skip
    last = (case.rows - 1) * case.columns
    return sorted([*exact, *((last + start, last + stop) for start, stop in case.holes)])


def header_of(fingerprint: int) -> tuple[int, int, int, int]:
    return 3, ROUND & LARGEST, fingerprint, LARGEST - fingerprint


def batches_of(case: Case, host: Host, device: str) -> dict[int, NearestBatch]:
    """Those of the first and of the last rank."""
    down = None if case.sharded else lloyd_max(case.down_bits)
    return {
        rank: NearestBatch(
            host.shards, rank, case.columns, seed=SEED, up=case.points(), down=down, layouts=(host.up, host.down),
            state=torch.tensor([0, 0, LARGEST, 0], dtype=torch.int32, device=device),
            differ=torch.zeros((), dtype=torch.bool, device=device), exact=case.exact,
            holes=holes_of(case),
        )
        for rank in (0, case.ranks - 1)
    }  # fmt: skip


def place(values: Tensor, device: str, offset: int) -> Tensor:
    return torch.empty(values.numel() + offset, dtype=values.dtype, device=device)[offset:].copy_(values)


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
    out = place(torch.full((case.columns,), 3.0, dtype=FLOATS[case.floats]), device, case.offset)
    if case.sharded:
        for rank, batch in batches.items():
            arrived = received[rank].contiguous().to(device)
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


def check_narrow(case: Case, device: str, rng: np.random.Generator) -> None:
    """A round of NARROW."""
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
    with refused(ConfigurationError, "rotation_block 32768 is too large for the GPU kernels: use at most 16384"):
        large = replace(case, columns=40_000, block=32_768)
        batches_of(large, Host(large), device)
    batch, of_rows = (batches_of(one, Host(one), device)[0] for one in (case, replace(case, sharded=True)))
    gradient, sent = case.gradient(0).to(device), messages(case.ranks, host.up).to(device)
    with refused(InputError, "gradient must be contiguous"):
        batch.encode(gradient[1:], sent, (0, 0, 0, 0), 0)
    with refused(InputError, "sent must be contiguous uint8"):
        batch.encode(gradient, sent[:1], (0, 0, 0, 0), 0)
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
    # Whole blocks, which have a way of their own, and tensors of any sizes: blocks of 8192 to 64, with padding.
    yield check_round, Case(3 * 8192, kinds=("normal", "zero", "nan"), ranks=1)
    tensors = Case(9800, ends=(70, 300, 8492, 9000), bits=4, down_bits=3)
    yield check_round, tensors
    beside = Case(
        1500,
        block=512,
        ends=(70, 1000, 1300),
        exact=((64, 70), (1000, 1300)),
        holes=((1301, 1302), (1304, 1400)),
        offset=1,
    )
    yield check_round, replace(beside, floats="bf16", ranks=3, bits=8, down_bits=1)
    yield check_round, replace(beside, floats="fp16", sharded=True, bits=3)
    yield check_round, Case(8192, sharded=True, holes=((9, 4000),), kinds=("normal",))
    # Rows of embeddings.
    yield check_round, Case(40 * 96, ends=tuple(range(96, 40 * 96, 96)), bits=2, down_bits=6)
    yield check_round, Case(16_384 + 1024, block=16_384, bits=7, down_bits=7, kinds=("normal",))
    yield check_round, Case(2048, block=1024, ranks=5, bits=6, down_bits=8, floats="fp16", kinds=("large",))
    yield check_round, Case(70, ranks=3, bits=1, down_bits=2, exact=((3, 5),))  # owners of nothing
    yield check_narrow, narrow_case(ranks=3)
    beside = {"exact": ((3, 30), (17_000, 17_100)), "holes": ((16_440, 16_500), (20_000, 20_100)), "offset": 1}
    yield check_narrow, narrow_case(bits=7, floats="bf16", sharded=True, **beside)
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
            yield check_round, replace(case, sharded=True, ranks=3, holes=((1, 2), (5000, 90_000)))
    for bits in range(1, 9):
        floats = ("fp32", "bf16")[:: 1 - bits % 2 * 2]
        yield check_narrow, narrow_case(bits=bits, down_bits=9 - bits, floats=floats[0], ranks=3)
        yield check_narrow, narrow_case(bits=bits, floats=floats[1], sharded=True)
    for width in (16, 20, 32, 48, 272):
        yield check_round, Case(30_000 * width, ends=tuple(range(width, 30_000 * width, width)), ranks=4)
    for log in range(6, 15):
        yield check_round, Case(3 * 16_384 + 8192 + 1999, block=1 << log, ranks=8)
    yield check_round, Case(1 << 22, ranks=64)
    yield check_round, Case(30_522 * 96, ends=tuple(range(96, 30_522 * 96, 96)), ranks=4)


if __name__ == "__main__":
    sys.exit(check_cases(small_cases, large_cases))
