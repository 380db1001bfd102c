"""Checks that all ranks average the same gradient next, before uncompressed parts are summed.

Compressed gradients need no question: norms or codes carry the answer (fingerprint.py). Uncompressed gradients have no
fingerprint, and gloo ends the process when ranks sum tensors of different sizes. On a device the answer stays there.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.errors import InputError
from byteps_thc._base.limits import LARGEST_WORD
from byteps_thc._engine.engine import ParameterSlice
from byteps_thc._engine.fingerprint import Fingerprints, Known, damage
from byteps_thc._engine.staging import SideStream
from byteps_thc._net.communicator import Asking, Communicator, ExactSum, Followed
from byteps_thc._net.handshake import all_have_same, first_difference, gather_by_rank, gather_in_levels, gather_over
from byteps_thc._net.transport import Transport
from byteps_thc._scheme.decoding.codec import DAMAGED

_HASH_BYTES = 8
_FINGERPRINT_BITS = 62  # range of all_have_same()
#: A device's header: gradient number, round in 31 bits, two words of the fingerprint. The fingerprint words travel.
_HEADER_WORDS, _OWN_WORDS = 4, 2

SAME_MODEL = (
    "Names, sizes, order and loss scales must be the same on all ranks: end all of them, and start again with the same "
    "model, GradScaler and checkpoints"
)
SAME_ROWS = (
    "All ranks must run the same modules in the same order, with parameters of the same names and sizes, freeze the "
    "same ones, use the same ones of a module (unless set_reduce_scatter_unused_params(True) was called), and have the "
    "same loss scale and step"
)
SAME_TENSORS = "All ranks must pass the same names, sizes and dtypes in the same order"


@dataclass(frozen=True)
class Contents:
    """The parameters of a gradient, a line each, in their order. label: its name in errors."""

    label: str
    parameters: tuple[str, ...]

    @cached_property
    def layout(self) -> str:
        """Return a short text that identifies the parameters."""
        return _hash(self.parameters)


def contents_of(key: str, parameters: Sequence[ParameterSlice]) -> Contents:
    lines = tuple(f"{part.name!r} (elements {part.start} to {part.stop})" for part in parameters)
    label = repr(parameters[0].name if parameters else key)  # keys may be hashes
    return Contents(f"the buffer of {label} to {parameters[-1].name!r}" if len(parameters) > 1 else label, lines)


def how_it_travels(compress: bool) -> str:
    return "compressed" if compress else "uncompressed"


class Questions:
    """Questions of a single worker, or of workers that only servers connect: nothing is asked."""

    def use_loss_scale(self, scale: float) -> None:
        """Note the factor of later gradients; 1 before the first call."""

    def require_same(self, contents: Contents, size: int, round: int, *facts: str) -> None:
        """Raise InputError on all ranks, naming the gradient of each, unless all ask about the same; wait for them.

        size: elements of the gradient. facts: further texts to compare. Raises TransportError or DeadlineError if ranks
        do not answer. On a device nothing waits: look() and wait() return the error.
        """

    def require_same_layout(self, contents: Contents, size: int, round: int, *facts: str) -> None:
        """As require_same(), about the first gradient of a layout, before any of its payload leaves."""

    def look(self) -> InputError | None:
        """Return the error once, if it is known by now that ranks did not agree."""

    def wait(self) -> InputError | None:
        """As look(), for all questions before the call."""

    def spoil(self, error: InputError) -> None:
        """Return the error from now on, and make later averages on a device NaN, from any thread."""


class RankAgreement(Questions):
    """Asks the other ranks, with 16 bytes to each.

    levels: one communicator of all ranks, or one within a node and one between the nodes; each with its number of
    ranks. This object alone uses the communicators while a question is under way. what, hint: name of a gradient in
    errors, and their last sentence.
    """

    def __init__(self, *levels: tuple[Asking, int], what: str = "gradients", hint: str = SAME_MODEL) -> None:
        self._levels, self._what, self._hint = levels, what, hint
        self._loss_scale = 1.0

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._loss_scale = scale

    @override
    def require_same(self, contents: Contents, size: int, round: int, *facts: str) -> None:
        about = [contents.label, *facts, f"gradients scaled by {self._loss_scale!r}"]
        if all_have_same([communicator for communicator, _ in self._levels], _number([*about, contents.layout])):
            return
        # The result is the same on all ranks, so all ranks get here.
        fast, *slow = (gather_over(*level) for level in self._levels)
        gather = gather_in_levels(fast, *slow) if slow else fast
        _, who = first_difference(gather_by_rank(gather, "\n".join([*about, *contents.parameters])))
        raise InputError(
            f"ranks average different {self._what}. Next here is {contents.label}; what differs first is {who}. "
            f"{self._hint}"
        )


class ServersAgreement(Questions):
    """Asks the servers for the maximum of a hash of the tensors, without a process group.

    Its norms are numbered with the gradients' norms: all earlier gradients must have left, on all workers.
    """

    def __init__(self, transport: Transport) -> None:
        self._transfer = transport.new_transfer("agreement", 4, 0)

    @override
    def require_same(self, contents: Contents, size: int, round: int, *facts: str) -> None:
        # A worker that sends a gradient instead of a question is noticed too, on all workers: see fingerprint.py.
        number = _number([contents.label, *facts, contents.layout])
        halves = (number & LARGEST_WORD, number >> 31)
        mine = np.array([word for half in halves for word in (half, LARGEST_WORD - half)], np.int32)
        self._transfer.send_norms(mine.view(np.float32))
        largest = self._transfer.wait_norms().view(np.int32)
        if largest.any() and not np.array_equal(largest, mine):  # zeros: a quorum has left this worker behind
            first = contents.parameters[0] if contents.parameters else "none"
            raise InputError(
                f"workers average different tensors. Here {len(contents.parameters)}, beginning with {first}. "
                f"{SAME_TENSORS}"
            )


class DeviceAgreement(Questions):
    """The agreement about all gradients of an engine, in device memory.

    state: int32[4], the header of the last gradient, or of the first that ranks disagreed about: number, round in 31
    bits, and the maxima of the two fingerprint words over the ranks, which add up to 2^31 - 1 if all ranks agree. If
    only digests of the last average differ: number + DAMAGED, and the maxima of digest_words().
    differ: bool[], whether ranks disagreed. The kernels of compressed gradients write both.
    communicator: of device tensors. of_layouts: asked about the first gradient of each layout, in host memory, because
    messages of different sizes would never arrive.
    """

    def __init__(
        self, fingerprints: Fingerprints, device: torch.device, communicator: Communicator, of_layouts: Questions
    ) -> None:
        self._communicator, self._fingerprints, self._of_layouts = communicator, fingerprints, of_layouts
        self._pieces: list[Known] = []
        self._questions: dict[tuple[Contents, int], tuple[int, Tensor]] = {}
        self.state = torch.tensor([0, 0, LARGEST_WORD, 0], dtype=torch.int32, device=device)
        self.differ = torch.zeros((), dtype=torch.bool, device=device)
        self._copy: Tensor | None = None
        if device.type == "cuda":
            self._copy = torch.empty(_HEADER_WORDS, dtype=torch.int32, pin_memory=True, device="cpu")
        self._copied: torch.cuda.Event | None = None
        self._spoiled: InputError | None = None

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._of_layouts.use_loss_scale(scale)  # the engine tells the fingerprints

    def number(self, names: Sequence[str], columns: int, label: str, layout: str) -> int:
        known = self._fingerprints.of(names, columns, label, layout)
        if known not in self._pieces:
            self._pieces.append(known)
        return self._pieces.index(known)

    def header(self, number: int, round: int) -> tuple[int, int, int, int]:
        return (number, round & LARGEST_WORD, *self._fingerprints.words(self._pieces[number], round))

    @override
    def require_same(self, contents: Contents, size: int, round: int, *facts: str) -> None:
        key = (contents, size)
        if key not in self._questions:
            name, label = f"{contents.label} uncompressed", f"{contents.label} ({size} elements)"
            words = torch.zeros(_HEADER_WORDS, dtype=torch.int32, device=self.state.device)
            self._questions[key] = self.number([name], size, label, contents.layout), words
        number, words = self._questions[key]
        for word, value in zip(words.unbind(), self.header(number, round), strict=True):
            word.fill_(value)  # a fill: copying from host memory would wait
        self._communicator.max_(words[_OWN_WORDS:]).wait()
        torch.where(self.differ, self.state, words, out=self.state)
        torch.ne(self.state[_OWN_WORDS:].sum(dtype=torch.int64), LARGEST_WORD, out=self.differ)

    @override
    def require_same_layout(self, contents: Contents, size: int, round: int, *facts: str) -> None:
        self._of_layouts.require_same(contents, size, round, *facts)

    def spoiled(self, exact: ExactSum) -> ExactSum:
        """Return sums that are NaN if ranks turn out to disagree."""
        return lambda values: Followed(exact(values), lambda: values.masked_fill_(self.differ, torch.nan))

    @override
    def look(self) -> InputError | None:
        """Return the error of gradients before this call, on a GPU before the last call; None: ranks agreed.

        On a GPU the host waits for the work before the last call, so that all ranks get the error in the same step.
        """
        if self._copy is None:
            return self._error(self.state)
        if self._copied is not None:
            self._copied.synchronize()
            if (error := self._error(self._copy)) is not None:
                return error
        self._copy.copy_(self.state, non_blocking=True)
        self._copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._copied.record()
        return None

    @override
    def wait(self) -> InputError | None:
        return self._error(self.state)

    @override
    def spoil(self, error: InputError) -> None:
        self._spoiled = error
        stream = SideStream(self.state.device)  # the engine's own stream waits for a collective
        with stream.current():
            self.state.fill_(-1)  # ranks that agree have other words
            self.differ.fill_(True)
        stream.wait()

    def _error(self, header: Tensor) -> InputError | None:
        if self._spoiled is not None:
            return self._spoiled
        number, round, largest, complement = header.tolist()
        if largest + complement == LARGEST_WORD:
            return None
        if number >= DAMAGED:
            return damage(f"average of {self._pieces[number - DAMAGED].label} before round {round}")
        return self._fingerprints.mismatch(
            self._pieces[number], round, (largest, complement), "Compressed averages are NaN from there on"
        )


def _number(lines: Iterable[str]) -> int:
    return int(_hash(lines), 16) >> (_HASH_BYTES * 8 - _FINGERPRINT_BITS)


def _hash(lines: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=_HASH_BYTES).hexdigest()
