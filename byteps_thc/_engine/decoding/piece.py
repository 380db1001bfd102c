"""A piece of a gradient among ranks that decode each other's codes:

    measure: encode -> [codes travel] -> sum: decode, average, encode -> [averages travel] -> decode

Codes begin with the gradient's fingerprint and the digest of its last average. Every rank owns a shard, so all ranks
see the same headers, and raise the same error before the first average is written. A header is a message of its own,
also of uncompressed gradients: it arrives even if the other rank's gradient has another size.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.arrays import F32, gradient_view
from byteps_thc._engine.agreement import Questions, how_it_travels
from byteps_thc._engine.decoding.plan import PiecePlan, piece_plans
from byteps_thc._engine.exact import ExactTools, Question, UncompressedPiece
from byteps_thc._engine.fingerprint import Fingerprints, Known, digest_words, sum_of_bits
from byteps_thc._engine.layout import Layout, index_of
from byteps_thc._engine.piece import Piece, Pieces
from byteps_thc._engine.statistics import StatsRecorder, WorkClock
from byteps_thc._net.communicator import Waitable
from byteps_thc._net.rank_messages import RankMessages
from byteps_thc._net.transport import FINGERPRINT_WORDS
from byteps_thc._scheme.decoding.codec import HEADER_BYTES, Messages, RankCodec

_CPU = torch.device("cpu")
#: Words in place of a digest, and never one: the gradient travels uncompressed.
_UNCOMPRESSED = 1, 0


@dataclass(frozen=True)
class RankTools:
    codec: RankCodec
    messages: RankMessages
    fingerprints: Fingerprints
    recorder: StatsRecorder
    clock: WorkClock


class RankPiece(Piece):
    """A piece of all rounds. question: asked before anything is sent; None: headers answer it."""

    def __init__(self, tools: RankTools, plan: PiecePlan, question: Question | None = None) -> None:
        self._tools, self._plan, self._question = tools, plan, question
        self._own = plan.shards[tools.codec.rank]
        self._exact_columns = index_of(plan.exact, _CPU)
        self._known = tools.fingerprints.of(*plan.identity)
        self._digest = 0, 0  # words of the last average
        self._round: int
        self._headers: Waitable
        self._work: Waitable
        self._sent: Tensor
        self._arrived: Tensor  # codes, later averages

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        """Send everything; the gradient is free on return."""
        tools, plan, self._round = self._tools, self._plan, round
        if self._question is not None:
            self._question.ask(round)
        rows = gradient.view(len(plan.shards) if plan.sharded else 1, -1)[:, plan.span]
        self._sent, self._arrived = (tools.messages.take(plan.up.size_bytes) for _ in range(2))
        with tools.clock.timed(tools.recorder, "encode_ms"):
            messages = Messages.of(self._sent.numpy(), plan.up)
            messages.words[:] = *tools.fingerprints.words(self._known, round), *self._digest
            self._take_exact(rows, messages)
            tools.codec.encode(plan.shards, [gradient_view(row) for row in rows], messages, round)
        self._headers, self._work = tools.messages.all_to_all_apart(self._arrived, self._sent, HEADER_BYTES)
        tools.recorder.add_quantization(coordinates=rows.numel(), clamped=0)

    @override
    def sum(self) -> None:
        """Average this rank's share.

        Raises InputError, on all ranks, unless all average the same, and had the same average in the last round.
        """
        tools, plan = self._tools, self._plan
        self._headers.wait()
        received = Messages.of(self._arrived.numpy(), plan.up)
        # Before the wait for the rest, which never comes from a gradient of another size.
        if (error := tools.fingerprints.difference(self._known, self._round, received.words)) is not None:
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
        out = out[plan.span]
        if not plan.sharded:
            self._work.wait()
        arrived = Messages.of(self._arrived.numpy(), plan.down)
        with tools.clock.timed(tools.recorder, "decode_ms"):
            if plan.sharded:
                tools.codec.average(self._own, arrived, gradient_view(out), self._round)
                exact = _average_exact(arrived)
            else:
                total = tools.codec.decode(plan.shards, arrived, gradient_view(out), self._round)
                owned = zip(arrived.exact, plan.shards, strict=True)
                exact = np.concatenate([own[: _size(shard.exact)] for own, shard in owned])
                self._digest = digest_words(total + sum_of_bits(exact))
            if self._exact_columns is not None:
                out.index_copy_(0, self._exact_columns, torch.from_numpy(exact).to(out.dtype))
        tools.messages.give_back(self._arrived)

    def _take_exact(self, rows: Tensor, messages: Messages) -> None:
        if self._exact_columns is not None:
            values = rows.index_select(1, self._exact_columns).float().numpy().reshape(-1)
            for shard, exact in zip(self._plan.shards, messages.exact, strict=True):
                exact[: _size(shard.exact)] = values[shard.exact]


class HeaderPiece(UncompressedPiece):
    """An uncompressed gradient in a round. Its header travels as a header of codes. known: its identity."""

    def __init__(self, tools: RankTools, exact: ExactTools, question: Question, known: Known) -> None:
        super().__init__(exact, question)
        self._tools, self._known = tools, known
        self._sent: Tensor
        self._arrived: Tensor
        self._headers: Waitable

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        super().measure(gradient, round)
        tools = self._tools
        self._sent, self._arrived = (tools.messages.take(HEADER_BYTES) for _ in range(2))
        words = self._sent.numpy().view(np.int32)
        words[:] = *tools.fingerprints.words(self._known, round), *_UNCOMPRESSED
        self._headers = tools.messages.all_to_all(self._arrived, self._sent)

    @override
    def ask(self) -> None:
        tools = self._tools
        self._headers.wait()
        words = self._arrived.numpy().view(np.int32)
        if (error := tools.fingerprints.difference(self._known, self._round, words)) is not None:
            if (words[:, FINGERPRINT_WORDS:] == _UNCOMPRESSED).all():  # on all ranks, which compare their gradients
                super().ask()
            raise error
        tools.messages.give_back(self._sent)
        tools.messages.give_back(self._arrived)


def _average_exact(received: Messages) -> F32:
    with np.errstate(all="ignore"):  # Inf and NaN are values as any
        average: F32 = np.add.accumulate(received.exact, axis=0)[-1] / np.float32(len(received.exact))
    return average


def rank_pieces(tools: RankTools, exact: ExactTools, questions: Questions, layout: Layout) -> Pieces:
    """Return the pieces of gradients of a layout."""
    about, size, dtype = layout.contents, layout.size, layout.dtype
    # Ranks that use other parameters have gradients of other sizes, which end gloo's process.
    asked = Question(questions, about, size, dtype, compress=True) if layout.extent.sharded else None
    plans = [] if layout.all_exact else [*piece_plans(layout, tools.codec.settings)]
    pieces = [RankPiece(tools, plan, None if number else asked) for number, plan in enumerate(plans)]
    question, how = Question(questions, about, size, dtype, compress=False), how_it_travels(compress=False)
    label, same = f"{layout.extent.label} ({size} elements, {how})", f"{layout.extent.layout} {dtype}"
    known = tools.fingerprints.of([f"{layout.key} {how}"], size, label, same)
    return lambda compress: pieces if compress else [HeaderPiece(tools, exact, question, known)]


def _size(cut: slice) -> int:
    size: int = cut.stop - cut.start
    return size
