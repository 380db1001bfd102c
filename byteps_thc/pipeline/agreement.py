"""Do all ranks have the same gradient next? Asked before anything of it is added up that has no fingerprint.

What is compressed needs no question: the norms of its pieces carry the answer (fingerprint.py). What travels
uncompressed has none, and gloo ends the process when ranks sum tensors of different sizes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from byteps_thc.errors import InputError
from byteps_thc.pipeline.buffers import ParameterSlice
from byteps_thc.transport.communicator import Communicator
from byteps_thc.transport.handshake import all_have_same, first_difference, gather_texts

_HASH_BYTES = 8
_FINGERPRINT_BITS = 62  # what all_have_same() takes

#: What to do about ranks with different gradients.
SAME_MODEL = (
    "Names, sizes, order and loss scales must be the same on all ranks: end all of them, and start again with the same "
    "model, GradScaler and checkpoints"
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


class RankAgreement:
    """Asks the other ranks, with 16 bytes to each. communicator: nobody else uses it while a question is under way.

    workers: how many ranks there are. hint: what errors end with.
    """

    def __init__(self, communicator: Communicator, workers: int, hint: str = SAME_MODEL) -> None:
        self._communicator, self._workers, self._hint = communicator, workers, hint

    def require_same(self, contents: Contents, loss_scale: float, *facts: str) -> None:
        """Raise InputError on all ranks, naming what each has, unless all ask about the same; waits for them.

        facts: what else must be the same. TransportError or DeadlineError when ranks do not answer.
        """
        about = [contents.label, *facts, f"gradients scaled by {loss_scale!r}"]
        asked = int(_hash([*about, contents.layout]), 16) >> (_HASH_BYTES * 8 - _FINGERPRINT_BITS)
        if all_have_same(self._communicator, asked):
            return
        # All ranks have the same answer, so all of them come here.
        text = "\n".join([*about, *contents.parameters]).encode()
        texts = gather_texts(self._communicator, self._workers, text)
        _, who = first_difference([text.decode().split("\n") for text in texts])
        raise InputError(
            f"ranks average different gradients. Next here is {contents.label}; what differs first is {who}. "
            f"{self._hint}"
        )


def _hash(lines: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=_HASH_BYTES).hexdigest()
