"""A gradient on a device among ranks that decode each other's codes: three launches and two collectives.

measure() works on a stream ahead of the stream of all other stages (stages.py), and nobody waits. A gradient is one
piece: every launch and collective costs the host tens of microseconds, and backward overlaps with them anyhow.
"""

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._engine.agreement import DeviceAgreement
from byteps_thc._engine.decoding.plan import PiecePlan, piece_plans
from byteps_thc._engine.exact import ExactTools, Question, UncompressedPiece
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.piece import Piece, Pieces
from byteps_thc._engine.staging import Mark
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.communicator import Waitable
from byteps_thc._net.rank_messages import RankMessages
from byteps_thc._scheme.decoding.settings import ResolvedRankCodes

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc._scheme.decoding.gpu.block_batch import BlockBatch


class SentMessages:
    """Memory for messages to owners, two in turn: a gradient is encoded while codes of the last gradient travel."""

    def __init__(self, ranks: int, device: torch.device) -> None:
        self._ranks = ranks
        # Two: with more, memory would grow while the host runs ahead of the device.
        self._turns = deque((torch.empty(0, dtype=torch.uint8, device=device), Mark(device)) for _ in range(2))

    def take(self, size_bytes: int) -> Tensor:
        """Return memory for a message of every rank, uint8[ranks, size_bytes], free for later work of this stream."""
        memory, sent = self._turns[0]
        sent.make_stream_wait()
        if memory.numel() < self._ranks * size_bytes:
            # Zeros: the padding of messages must not leak another object's memory.
            memory = torch.zeros(self._ranks * size_bytes, dtype=torch.uint8, device=memory.device)
            self._turns[0] = memory, sent
        return memory[: self._ranks * size_bytes].view(self._ranks, size_bytes)

    def end_turn(self) -> None:
        """Free the taken memory once this stream's work so far is done."""
        self._turns[0][1].set()
        self._turns.rotate(-1)


@dataclass(frozen=True)
class DeviceTools:
    """Shared by the gradients of an engine. rank: the own one."""

    settings: ResolvedRankCodes
    rank: int
    messages: RankMessages
    agreement: DeviceAgreement
    recorder: StatsRecorder

    @cached_property
    def sent(self) -> SentMessages:
        return SentMessages(self.settings.ranks, self.agreement.state.device)


class DevicePiece(Piece):
    """A gradient in a round. number: in the agreement. done: earlier rounds, whose random numbers the batch has."""

    def __init__(self, tools: DeviceTools, plan: PiecePlan, batch: "BlockBatch", number: int, done: Mark) -> None:
        self._tools, self._plan, self._batch, self._number, self._done = tools, plan, batch, number, done
        self._sent: Tensor
        self._arrived: Tensor  # codes, later averages
        self._work: Waitable

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        tools = self._tools
        self._done.make_stream_wait()
        self._sent = tools.sent.take(self._plan.up.size_bytes)
        self._batch.encode(gradient.view(-1), self._sent, tools.agreement.header(self._number, round), round)
        tools.recorder.add_quantization(coordinates=gradient.numel(), clamped=0)

    @override
    def encode(self) -> None:
        """Send the codes."""
        messages = self._tools.messages
        self._arrived = messages.take(self._plan.up.size_bytes)
        self._work = messages.all_to_all(self._arrived, self._sent)

    @override
    def sum(self) -> None:
        tools = self._tools
        self._work.wait()
        tools.sent.end_turn()
        if self._plan.sharded:
            return
        averages = tools.messages.take(self._plan.down.size_bytes)
        self._batch.recode(self._arrived, averages[tools.rank])
        tools.messages.give_back(self._arrived)
        self._arrived = averages
        self._work = tools.messages.all_gather(averages, averages[tools.rank])

    @override
    def decode(self, out: Tensor) -> None:
        if not self._plan.sharded:
            self._work.wait()
        self._batch.decode(self._arrived, out)
        self._tools.messages.give_back(self._arrived)
        self._done.set()


def device_pieces(tools: DeviceTools, exact: ExactTools, layout: Layout) -> Pieces:
    """Return the pieces of gradients of a layout."""
    question = Question(tools.agreement, layout.contents, layout.size, layout.dtype, compress=False)
    if layout.all_exact:
        return lambda _: [UncompressedPiece(exact, question)]
    [plan] = piece_plans(layout, tools.settings, whole=True)
    batch, number = batch_of(tools, plan, layout.columns), tools.agreement.number(*plan.identity)
    done = Mark(tools.agreement.state.device)
    done.set()  # behind the upload of the batch's tables
    return lambda compress: [
        DevicePiece(tools, plan, batch, number, done) if compress else UncompressedPiece(exact, question)
    ]


def batch_of(tools: DeviceTools, plan: PiecePlan, columns: int) -> "BlockBatch":
    from byteps_thc._scheme.decoding.gpu.block_batch import BlockBatch

    settings = tools.settings
    return BlockBatch(
        plan.shards,
        tools.rank,
        columns,
        seed=settings.codes.seed,
        bits=settings.codes.bits,
        down_bits=settings.down_bits,
        layouts=(plan.up, plan.down),
        state=tools.agreement.state,
        differ=tools.agreement.differ,
        exact=plan.exact,
    )
