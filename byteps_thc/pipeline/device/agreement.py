"""Do all ranks average the same gradient? Asked as in host memory (fingerprint.py), answered on the device.

Nobody waits for the answer. From the first gradient on that is not the same everywhere, averages are NaN on all ranks.
The host learns of it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc.errors import InputError
from byteps_thc.pipeline.agreement import Contents, Questions
from byteps_thc.pipeline.fingerprint import LARGEST_WORD, Fingerprints, Known
from byteps_thc.transport.communicator import Communicator, ExactSum, Waitable

#: Words of a header: number of the gradient, its round in 31 bits, and two words of its fingerprint, which travel.
_HEADER_WORDS, _OWN_WORDS = 4, 2
_OUTCOME = "Compressed averages are NaN from there on"


@dataclass(frozen=True)
class _SpoiledSum(Waitable):
    work: Waitable
    values: Tensor
    differ: Tensor

    @override
    def wait(self) -> None:
        self.work.wait()
        self.values.masked_fill_(self.differ, torch.nan)


class DeviceAgreement(Questions):
    """What an engine knows of all its gradients, in device memory.

    state: int32[4], the header of the last gradient, or of the first one that was not the same on all ranks: number,
    round in 31 bits, and the maxima of the two fingerprint words over the ranks, which add up to 2^31 - 1 if all ranks
    have the same. differ: bool[], whether there was such a gradient. The kernels of compressed gradients
    (gpu/nearest_decode.py) write both. fingerprints: of the engine. communicator: of tensors on the device.
    """

    def __init__(self, fingerprints: Fingerprints, device: torch.device, communicator: Communicator) -> None:
        self._communicator, self._fingerprints = communicator, fingerprints
        self._pieces: list[Known] = []
        self._questions: dict[tuple[Contents, int], tuple[int, Tensor]] = {}
        self.state = torch.tensor([0, 0, LARGEST_WORD, 0], dtype=torch.int32, device=device)
        self.differ = torch.zeros((), dtype=torch.bool, device=device)
        self._copy = (
            torch.empty(_HEADER_WORDS, dtype=torch.int32, pin_memory=True, device="cpu")
            if device.type == "cuda"
            else None
        )
        self._copied: torch.cuda.Event | None = None

    def number(self, names: Sequence[str], columns: int, label: str, layout: str) -> int:
        """Return the number of a piece; arguments as those of Fingerprints.of()."""
        known = self._fingerprints.of(names, columns, label, layout)
        if known not in self._pieces:
            self._pieces.append(known)
        return self._pieces.index(known)

    def header(self, number: int, round: int) -> tuple[int, int, int, int]:
        """Return the header of a piece in a round, see `state`."""
        return (number, round & LARGEST_WORD, *self._fingerprints.words(self._pieces[number], round))

    @override
    def require_same(self, contents: Contents, size: int, round: int, *facts: str) -> None:
        """See Questions; nobody waits, look() and wait() tell."""
        key = (contents, size)
        if key not in self._questions:
            name, label = f"{contents.label} uncompressed", f"{contents.label} ({size} elements)"
            words = torch.zeros(_HEADER_WORDS, dtype=torch.int32, device=self.state.device)
            self._questions[key] = self.number([name], size, label, contents.layout), words
        number, words = self._questions[key]
        for word, value in zip(words.unbind(), self.header(number, round), strict=True):
            word.fill_(value)  # as numbers: a copy from host memory would wait
        self._communicator.max_(words[_OWN_WORDS:]).wait()
        torch.where(self.differ, self.state, words, out=self.state)
        torch.ne(self.state[_OWN_WORDS:].sum(dtype=torch.int64), LARGEST_WORD, out=self.differ)

    def spoiled(self, exact: ExactSum) -> ExactSum:
        """Return sums that are NaN unless all ranks agree when they are waited for."""
        return lambda values: _SpoiledSum(exact(values), values, self.differ)

    @override
    def look(self) -> InputError | None:
        """Return the error if it is known here that the ranks do not agree. Waits for nothing.

        On a GPU it asks for what later calls tell: what is known may be some steps old.
        """
        if self._copy is None:
            return self._error(self.state)
        if self._copied is not None:
            if not self._copied.query():  # type: ignore[no-untyped-call]
                return None
            if (error := self._error(self._copy)) is not None:
                return error
        self._copy.copy_(self.state, non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()
        return None

    @override
    def wait(self) -> InputError | None:
        return self._error(self.state)

    def _error(self, header: Tensor) -> InputError | None:
        number, round, largest, complement = header.tolist()
        if largest + complement == LARGEST_WORD:
            return None
        return self._fingerprints.mismatch(self._pieces[number], round, (largest, complement), _OUTCOME)
