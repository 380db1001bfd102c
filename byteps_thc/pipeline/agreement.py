"""Do all ranks have the same gradient next? Asked before anything of it is added up that has no fingerprint.

What is compressed needs no question: the norms of its pieces carry the answer (fingerprint.py). What travels
uncompressed has none, and gloo ends the process when ranks sum tensors of different sizes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from byteps_thc.errors import InputError
from byteps_thc.pipeline.buffers import ParameterSlice
from byteps_thc.transport.communicator import Communicator
from byteps_thc.transport.handshake import all_have_same, first_difference, gather_by_rank, gather_over

_HASH_BYTES = 8
_FINGERPRINT_BITS = 62  # what all_have_same() takes

#: What to do about ranks with different gradients.
SAME_MODEL = (
    "Names, sizes, order and loss scales must be the same on all ranks: end all of them, and start again with the same "
    "model, GradScaler and checkpoints"
)

#: What to do about ranks with different sharded gradients.
SAME_ROWS = (
    "All ranks must run the same modules in the same order, with parameters of the same names and sizes, freeze the "
    "same ones, use the same ones of a module (unless set_reduce_scatter_unused_params(True) was called), and have the "
    "same loss scale and step"
)


@dataclass(frozen=True)
class Contents:
    """What a gradient is made of. label: what errors call it. parameters: in their order, a line for each."""

    label: str
    parameters: tuple[str, ...]

    @cached_property
    def layout(self) -> str:
        """A short text that is the same for the same parameters only."""
        return _hash(self.parameters)


def contents_of(key: str, parameters: Sequence[ParameterSlice]) -> Contents:
    """Return the contents of a buffer of that key with these parameters."""
    lines = tuple(f"{part.name!r} (elements {part.start} to {part.stop})" for part in parameters)
    return Contents(label_of(parameters) if parameters else repr(key), lines)


def label_of(parameters: Sequence[ParameterSlice]) -> str:
    """Return what people know a buffer by: keys may be hashes."""
    first, last = parameters[0].name, parameters[-1].name
    return repr(first) if len(parameters) == 1 else f"the buffer of {first!r} to {last!r}"


def how_it_travels(compress: bool) -> str:
    """Return the fact that a gradient travels compressed, or not."""
    return "compressed" if compress else "uncompressed"


class Questions:
    """Asks nobody: the workers are known to each other by their servers alone, or are one."""

    def use_loss_scale(self, scale: float) -> None:
        """Gradients are multiplied by it from now on; 1 before the first call."""

    def require_same(self, contents: Contents, size: int, round: int, *facts: str) -> None:
        """Raise InputError on all ranks, naming what each has, unless all ask about the same; waits for them.

        size: elements of the gradient. round: of it. facts: what else must be the same. TransportError or DeadlineError
        when ranks do not answer. On a device nobody waits, and look() and wait() tell.
        """

    def look(self) -> InputError | None:
        """Return the error if it is known by now that ranks did not agree, and nobody was told."""

    def wait(self) -> InputError | None:
        """As look(), for all that was asked before the call."""


class RankAgreement(Questions):
    """Asks the other ranks, with 16 bytes to each. communicator: nobody else uses it while a question is under way.

    workers: how many ranks there are. hint: what errors end with.
    """

    def __init__(self, communicator: Communicator, workers: int, hint: str = SAME_MODEL) -> None:
        self._communicator, self._workers, self._hint = communicator, workers, hint
        self._loss_scale = 1.0

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._loss_scale = scale

    @override
    def require_same(self, contents: Contents, size: int, round: int, *facts: str) -> None:
        about = [contents.label, *facts, f"gradients scaled by {self._loss_scale!r}"]
        asked = int(_hash([*about, contents.layout]), 16) >> (_HASH_BYTES * 8 - _FINGERPRINT_BITS)
        if all_have_same(self._communicator, asked):
            return
        # All ranks have the same answer, so all of them come here.
        text = "\n".join([*about, *contents.parameters])
        _, who = first_difference(gather_by_rank(gather_over(self._communicator, self._workers), text))
        raise InputError(
            f"ranks average different gradients. Next here is {contents.label}; what differs first is {who}. "
            f"{self._hint}"
        )


def _hash(lines: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=_HASH_BYTES).hexdigest()
