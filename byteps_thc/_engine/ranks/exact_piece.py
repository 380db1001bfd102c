"""What ranks that decode tell each other of a gradient that travels uncompressed, beside its pieces: its fingerprint.

It travels as the fingerprint of a compressed gradient does. So a rank that compresses the gradient which another rank
does not compress finds out, as the other rank does, instead of waiting for a message that never comes.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor
from typing_extensions import override

from byteps_thc._engine.agreement import Questions, how_it_travels
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.piece import Piece
from byteps_thc._net.communicator import Waitable
from byteps_thc._net.rank_messages import RankMessages
from byteps_thc._net.transport import FINGERPRINT_WORDS
from byteps_thc._scheme.block_plan import HEADER_BYTES

#: Word of a header that is 1 in front of nothing: the gradient travels uncompressed.
_UNCOMPRESSED = FINGERPRINT_WORDS


class ExactPlan:
    """A gradient that travels uncompressed, and what tells other ranks of it. questions: see ExactPiece.encode().
    known: its identity.
    """

    def __init__(
        self, layout: Layout, messages: RankMessages, fingerprints: Fingerprints, questions: Questions
    ) -> None:
        self.messages, self.fingerprints, self.questions = messages, fingerprints, questions
        self.contents, self.size, self.dtype = layout.contents, layout.size, layout.dtype
        extent, how = layout.extent, how_it_travels(compress=False)
        label = f"{extent.label} ({layout.size} elements, {how})"
        self.known = fingerprints.of([f"{extent.key} {how}"], layout.size, label, f"{extent.layout} {layout.dtype}")


class ExactPiece(Piece):
    """A gradient in a round. Nothing is written: its sum starts after encode()."""

    def __init__(self, plan: ExactPlan) -> None:
        self._plan = plan
        self._round: int
        self._sent: Tensor
        self._arrived: Tensor
        self._work: Waitable

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        """Send the fingerprint."""
        plan, self._round = self._plan, round
        self._sent, self._arrived = (plan.messages.take(HEADER_BYTES) for _ in range(2))
        words = self._sent.numpy().view(np.int32)
        words[:, :FINGERPRINT_WORDS] = plan.fingerprints.words(plan.known, round)
        words[:, _UNCOMPRESSED] = 1
        self._work = plan.messages.all_to_all(self._arrived, self._sent)

    @override
    def encode(self) -> None:
        """Raise InputError on all ranks unless all have this gradient next, and none compresses it."""
        plan, round = self._plan, self._round
        self._work.wait()
        words = self._arrived.numpy().view(np.int32)
        if (error := plan.fingerprints.difference(plan.known, round, words)) is not None:
            if words[:, _UNCOMPRESSED].all():  # so all ranks come here, and tell each other what they have
                facts = (f"round {round}", how_it_travels(compress=False), str(plan.dtype))
                plan.questions.require_same(plan.contents, plan.size, round, *facts)
            raise error
        plan.messages.give_back(self._sent)
        plan.messages.give_back(self._arrived)

    @override
    def sum(self) -> None:
        """Do nothing."""

    @override
    def decode(self, out: Tensor) -> None:
        """Do nothing."""
