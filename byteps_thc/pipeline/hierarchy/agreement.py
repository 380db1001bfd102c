"""Do all ranks of a mesh average the same gradient? Asked before shards of different gradients are added up.

Every rank sends two halves of a number, and the same negated; the maximum over the fast and then over the slow
dimension is what everyone has sent, or ranks differ, and all of them see it.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from byteps_thc.errors import InputError
from byteps_thc.transport.communicator import Communicator, Waitable


class MeshAgreement:
    """fast, slow: communicators of host tensors, for it alone at the time. slow: None: only the node is asked."""

    def __init__(self, fast: Communicator, slow: Communicator | None) -> None:
        self._fast, self._slow = fast, slow

    def ask(self, gradient: str) -> Question:
        """Ask about the next gradient, which that text describes. Returns when the node has answered, all ranks later.

        TransportError or DeadlineError when ranks do not answer.
        """
        number = zlib.crc32(gradient.encode())
        halves = torch.tensor([number >> 16, number & 0xFFFF], dtype=torch.int32, device="cpu")
        largest = torch.cat([halves, -halves])  # the largest of -x is the smallest x
        self._fast.max_(largest).wait()
        node = _same(largest)
        # Where the node differs, so do its words: the other nodes see that, too.
        return Question(gradient, node, largest, None if self._slow is None else self._slow.max_(largest))


class Question:
    """A question under way. node: whether the ranks of this node agree."""

    def __init__(self, gradient: str, node: bool, largest: Tensor, work: Waitable | None) -> None:
        self.node = node
        self._gradient, self._largest, self._work = gradient, largest, work

    def require_yes(self) -> None:
        """Wait for the answer of all ranks; once. InputError on all of them when they differ."""
        if self._work is not None:
            self._work.wait()
        if not _same(self._largest):
            raise InputError(
                f"ranks average different gradients; here it is {self._gradient}. Names, sizes and rounds must be the "
                "same on all ranks, in the same order: end all of them, and start again with the same model and the "
                "checkpoints of the same step"
            )


def _same(largest: Tensor) -> bool:
    return torch.equal(largest[:2], -largest[2:])
