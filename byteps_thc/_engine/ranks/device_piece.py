"""A gradient on a device among ranks that decode each other's codes: three launches and two collectives.

All work is put on the engine's stream, and nobody waits. A gradient is one piece: every launch and collective costs the
host tens of microseconds, and backward overlaps with them anyhow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from typing_extensions import override

from byteps_thc._engine.agreement import DeviceAgreement
from byteps_thc._engine.layout import Layout, Piece, PlacedPiece, Round
from byteps_thc._engine.ranks.plan import PiecePlan, piece_plans
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.communicator import Waitable
from byteps_thc._net.rank_messages import RankMessages
from byteps_thc._scheme.rank_settings import RankSettings

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc._scheme.gpu.block_batch import BlockBatch


@dataclass(frozen=True)
class DeviceTools:
    """Shared by the gradients of an engine. rank: the own one."""

    settings: RankSettings
    rank: int
    messages: RankMessages
    agreement: DeviceAgreement
    recorder: StatsRecorder


class DevicePiece(Piece):
    """A gradient in a round. number: of the gradient in the engine's agreement."""

    def __init__(self, tools: DeviceTools, plan: PiecePlan, batch: BlockBatch, number: int) -> None:
        self._tools, self._plan, self._batch, self._number = tools, plan, batch, number
        self._arrived: Tensor  # codes, later averages
        self._work: Waitable

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        tools = self._tools
        sent, self._arrived = (tools.messages.take(self._plan.up.size_bytes) for _ in range(2))
        self._batch.encode(gradient.view(-1), sent, tools.agreement.header(self._number, round), round)
        self._work = tools.messages.all_to_all(self._arrived, sent)
        tools.messages.give_back(sent)  # the next user works on it behind this collective
        tools.recorder.add_quantization(coordinates=gradient.numel(), clamped=0)

    @override
    def encode(self) -> None:
        """Do nothing: the codes are on their way."""

    @override
    def sum(self) -> None:
        tools = self._tools
        self._work.wait()
        if self._plan.sharded:
            return
        averages = tools.messages.take(self._plan.down.size_bytes)
        self._batch.recode(self._arrived, averages[tools.rank])
        tools.messages.give_back(self._arrived)
        self._arrived = averages
        self._work = tools.messages.all_gather(averages, averages[tools.rank])

    @override
    def decode(self, out: Tensor) -> None:
        if self._plan.sharded:
            self._batch.average(self._arrived, out)
        else:
            self._work.wait()
            self._batch.decode(self._arrived, out)
        self._tools.messages.give_back(self._arrived)


def prepare_device_pieces(tools: DeviceTools, layout: Layout) -> None:
    if layout.all_exact:
        return
    layout.pieces_take_exact = True
    [plan] = piece_plans(layout, tools.settings, whole=True)
    batch, number = _batch(tools, plan, layout.columns), tools.agreement.number(*plan.identity)

    def of_round(round: Round) -> Iterator[PlacedPiece]:
        if round.compress:
            yield PlacedPiece(DevicePiece(tools, plan, batch, number), plan.span, last=True)

    layout.pieces = of_round


def _batch(tools: DeviceTools, plan: PiecePlan, columns: int) -> BlockBatch:
    from byteps_thc._scheme.gpu.block_batch import BlockBatch

    settings = tools.settings
    return BlockBatch(
        plan.shards,
        tools.rank,
        columns,
        seed=settings.config.seed,
        bits=settings.bits,
        down_bits=settings.down_bits,
        layouts=(plan.up, plan.down),
        state=tools.agreement.state,
        differ=tools.agreement.differ,
        exact=plan.exact,
    )
