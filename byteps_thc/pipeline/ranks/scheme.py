"""What an engine of ranks that decode, in host memory, makes of its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from typing_extensions import override

from byteps_thc.pipeline.layout import Layout
from byteps_thc.pipeline.piece import PlacedPiece, Round
from byteps_thc.pipeline.ranks.exact_piece import ExactPiece, ExactPlan
from byteps_thc.pipeline.ranks.piece import HostPlan, RankPiece, RankTools
from byteps_thc.pipeline.ranks.plan import piece_plans
from byteps_thc.pipeline.scheme import Scheme


class RankScheme(Scheme):
    """Codes that ranks decode."""

    measures_residuals = True  # there are none
    compresses = True

    def __init__(self, tools: RankTools) -> None:
        self._tools = tools

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._tools.fingerprints.use_loss_scale(scale)

    @override
    def prepare(self, layout: Layout) -> None:
        tools, plans = self._tools, list[HostPlan]()
        if not layout.all_exact:
            layout.pieces_take_exact = True
            plans = [HostPlan(plan, tools.fingerprints) for plan in piece_plans(layout, tools.codec.settings)]
        layout.pieces = partial(_of_round, tools, plans, ExactPlan(layout, tools.fingerprints))

    @override
    def close(self) -> None:
        pass


def _of_round(tools: RankTools, plans: Sequence[HostPlan], exact: ExactPlan, round: Round) -> Iterator[PlacedPiece]:
    if not round.compress:
        yield PlacedPiece(ExactPiece(tools, exact), slice(0, 0), last=True)
        return
    for plan in plans:
        yield PlacedPiece(RankPiece(tools, plan, round.number), plan.plan.span, last=plan is plans[-1])
