"""A piece of a gradient among ranks that decode each other's codes:

    measure: encode -> [codes travel] -> sum: decode, average, encode -> [averages travel] -> decode

Nothing is asked in advance. Codes begin with the gradient's fingerprint: every rank owns a shard, so all of them see
all fingerprints, and raise the same error before the first average is written. A fingerprint is a message of its own,
sent at the same time, so it arrives even if the other rank's gradient has another size. Uncompressed gradients send
fingerprints the same way: a rank that compresses the gradient gets an error, instead of waiting for codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._engine.agreement import Questions, how_it_travels
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.layout import Layout, Piece, PlacedPiece, Round, index_of
from byteps_thc._engine.ranks.codec import Messages, RankCodec
from byteps_thc._engine.ranks.plan import PiecePlan, piece_plans
from byteps_thc._engine.statistics import StatsRecorder, WorkClock
from byteps_thc._net.communicator import Waitable
from byteps_thc._net.rank_messages import RankMessages
from byteps_thc._net.transport import FINGERPRINT_WORDS
from byteps_thc._scheme.arrays import F32, gradient_view
from byteps_thc._scheme.block_plan import HEADER_BYTES

_CPU = torch.device("cpu")
#: Word of a header without codes that is 1: the gradient travels uncompressed.
_UNCOMPRESSED = FINGERPRINT_WORDS


@dataclass(frozen=True)
class RankTools:
    codec: RankCodec
    messages: RankMessages
    fingerprints: Fingerprints
    questions: Questions
    recorder: StatsRecorder
    clock: WorkClock


class HostPlan:
    """A plan, and what a piece in host memory needs of it besides.

    exact_columns: int64, None without any. known: the piece's identity.
    """

    def __init__(self, plan: PiecePlan, fingerprints: Fingerprints) -> None:
        self.plan = plan
        self.exact_columns = index_of(plan.exact, _CPU)
        self.known = fingerprints.of(*plan.identity)


class RankPiece(Piece):
    def __init__(self, tools: RankTools, host: HostPlan, round: int) -> None:
        self._tools, self._host, self._plan, self._round = tools, host, host.plan, round
        self._own = host.plan.shards[tools.codec.rank]
        self._headers: Waitable
        self._work: Waitable
        self._sent: Tensor
        self._arrived: Tensor  # codes, later averages

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        """Send all of it; the gradient, [rows, columns], is free on return."""
        tools, plan = self._tools, self._plan
        self._sent, self._arrived = (tools.messages.take(plan.up.size_bytes) for _ in range(2))
        with tools.clock.timed(tools.recorder, "encode_ms"):
            messages = Messages.of(self._sent.numpy(), plan.up)
            messages.words[:, :FINGERPRINT_WORDS] = tools.fingerprints.words(self._host.known, round)
            _take_exact(self._host, gradient, messages)
            tools.codec.encode(plan.shards, [gradient_view(row) for row in gradient], messages, round)
        self._headers, self._work = tools.messages.all_to_all_apart(self._arrived, self._sent, HEADER_BYTES)
        tools.recorder.add_quantization(coordinates=gradient.numel(), clamped=0)

    @override
    def encode(self) -> None:
        """Do nothing: the codes are on their way."""

    @override
    def sum(self) -> None:
        """Average this rank's share. Raises InputError, on all ranks, unless all average the same."""
        tools, plan = self._tools, self._plan
        self._headers.wait()
        received = Messages.of(self._arrived.numpy(), plan.up)
        # Before the wait for the rest, which never comes from a gradient of another size.
        if (error := tools.fingerprints.difference(self._host.known, self._round, received.words)) is not None:
            raise error
        self._work.wait()
        tools.messages.give_back(self._sent)
        if plan.sharded:
            return
        averages = tools.messages.take(plan.down.size_bytes)
        own = averages[tools.codec.rank]
        with tools.clock.timed(tools.recorder, "encode_ms"):
            sent = Messages.of(own.numpy()[np.newaxis], plan.down)
            sent.exact[0] = _average_exact(received)
            tools.codec.recode(self._own, received, sent, self._round)
        tools.messages.give_back(self._arrived)
        self._arrived = averages
        self._work = tools.messages.all_gather(averages, own)

    @override
    def decode(self, out: Tensor) -> None:
        tools, plan = self._tools, self._plan
        if not plan.sharded:
            self._work.wait()
        arrived = Messages.of(self._arrived.numpy(), plan.down)
        with tools.clock.timed(tools.recorder, "decode_ms"):
            if plan.sharded:
                tools.codec.average(self._own, arrived, gradient_view(out), self._round)
                exact = _average_exact(arrived)
            else:
                tools.codec.decode(plan.shards, arrived, gradient_view(out), self._round)
                exact = np.concatenate(
                    [own[: _size(shard.exact)] for own, shard in zip(arrived.exact, plan.shards, strict=True)]
                )
            if self._host.exact_columns is not None:
                out.index_copy_(0, self._host.exact_columns, torch.from_numpy(exact).to(out.dtype))
        tools.messages.give_back(self._arrived)


class ExactPlan:
    """A gradient that travels uncompressed. known: its identity."""

    def __init__(self, tools: RankTools, layout: Layout) -> None:
        self.contents, self.size, self.dtype = layout.contents, layout.size, layout.dtype
        extent, how = layout.extent, how_it_travels(compress=False)
        label, same = f"{extent.label} ({layout.size} elements, {how})", f"{extent.layout} {layout.dtype}"
        self.known = tools.fingerprints.of([f"{extent.key} {how}"], layout.size, label, same)


class ExactPiece(Piece):
    """A gradient in a round. Nothing is written: its sum starts after encode()."""

    def __init__(self, tools: RankTools, plan: ExactPlan) -> None:
        self._tools, self._plan = tools, plan
        self._round: int
        self._sent: Tensor
        self._arrived: Tensor
        self._work: Waitable

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        tools, self._round = self._tools, round
        self._sent, self._arrived = (tools.messages.take(HEADER_BYTES) for _ in range(2))
        words = self._sent.numpy().view(np.int32)
        words[:, :FINGERPRINT_WORDS] = tools.fingerprints.words(self._plan.known, round)
        words[:, _UNCOMPRESSED] = 1
        self._work = tools.messages.all_to_all(self._arrived, self._sent)

    @override
    def encode(self) -> None:
        """Raise InputError on all ranks unless all have this gradient next, uncompressed."""
        tools, plan, round = self._tools, self._plan, self._round
        self._work.wait()
        words = self._arrived.numpy().view(np.int32)
        if (error := tools.fingerprints.difference(plan.known, round, words)) is not None:
            if words[:, _UNCOMPRESSED].all():  # all ranks get here, and tell each other their gradients
                facts = (f"round {round}", how_it_travels(compress=False), str(plan.dtype))
                tools.questions.require_same(plan.contents, plan.size, round, *facts)
            raise error
        tools.messages.give_back(self._sent)
        tools.messages.give_back(self._arrived)

    @override
    def sum(self) -> None:
        """Do nothing."""

    @override
    def decode(self, out: Tensor) -> None:
        """Do nothing."""


def _take_exact(host: HostPlan, rows: Tensor, messages: Messages) -> None:
    if host.exact_columns is not None:
        values = rows.index_select(1, host.exact_columns).float().numpy().reshape(-1)
        for shard, exact in zip(host.plan.shards, messages.exact, strict=True):
            exact[: _size(shard.exact)] = values[shard.exact]


def _average_exact(received: Messages) -> F32:
    with np.errstate(all="ignore"):  # Inf and NaN are values as any
        average: F32 = np.add.accumulate(received.exact, axis=0)[-1] / np.float32(len(received.exact))
    return average


def prepare_rank_pieces(tools: RankTools, layout: Layout) -> None:
    plans = list[HostPlan]()
    if not layout.all_exact:
        layout.pieces_take_exact = True
        plans = [HostPlan(plan, tools.fingerprints) for plan in piece_plans(layout, tools.codec.settings)]
    # Ranks that use other parameters have gradients of other sizes, which end gloo's process.
    layout.asked_first = layout.extent.sharded
    exact = ExactPlan(tools, layout)

    def of_round(round: Round) -> Iterator[PlacedPiece]:
        if not round.compress:
            yield PlacedPiece(ExactPiece(tools, exact), slice(0, 0), last=True)
            return
        for plan in plans:
            yield PlacedPiece(RankPiece(tools, plan, round.number), plan.plan.span, last=plan is plans[-1])

    layout.pieces = of_round


def _size(cut: slice) -> int:
    size: int = cut.stop - cut.start
    return size
