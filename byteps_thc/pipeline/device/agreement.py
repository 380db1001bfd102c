"""Do all ranks average the same gradient? Asked as in host memory (fingerprint.py), answered on the device.

Nobody waits for the answer, so codes are sent in any case. From the first gradient on that is not the same everywhere,
all ranks get NaN as maximum of the norms: averages are NaN and residuals stay. The host learns of it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc.config import ResolvedConfig
from byteps_thc.errors import InputError
from byteps_thc.pipeline.agreement import Contents, Questions
from byteps_thc.pipeline.fingerprint import LARGEST_WORD, Agreement, Fingerprints, Known, MeasuredRow, NormMessage
from byteps_thc.transport.communicator import Communicator, ExactSum, Waitable
from byteps_thc.transport.transport import FINGERPRINT_WORDS

_NAN = 0x7FC00000
_OWN_WORDS = 2  # the gradient's number and its round, which do not travel
_HEADER_WORDS = _OWN_WORDS + FINGERPRINT_WORDS
_OUTCOME = "Compressed averages are NaN from there on"


class DeviceMessage(NormMessage):
    """int32[words] on the device. number: of the piece in its DeviceAgreement. rows: none: nothing is compressed."""

    def __init__(self, agreement: DeviceAgreement, identity: Known, number: int, rows: Sequence[MeasuredRow]) -> None:
        self._agreement, self._identity, self._rows = agreement, identity, rows
        device = agreement.device
        self._blocks = [row.norms.numel() for row in rows]
        words = torch.zeros(_HEADER_WORDS + sum(self._blocks), dtype=torch.int32, device=device)
        words[0] = number
        self.header, self._norms = words[:_HEADER_WORDS], words[_HEADER_WORDS:]
        self.sent = words[_OWN_WORDS:]
        self._round_words = self.header[1:].unbind()
        # Of one row it is the row's own memory.
        alone = len(rows) == 1
        self._measured = rows[0].norms if alone else torch.empty(sum(self._blocks), device=device)
        self._maxima = rows[0].max_norms if alone else torch.empty_like(self._measured)

    @override
    def begin(self, round: int) -> None:
        own = (round & LARGEST_WORD, *self._agreement.words(self._identity, round))
        for word, value in zip(self._round_words, own, strict=True):
            word.fill_(value)  # as numbers: a copy from host memory would wait

    @override
    def write(self) -> None:
        if len(self._rows) > 1:
            torch.cat([row.norms for row in self._rows], out=self._measured)
        torch.bitwise_and(self._measured.view(torch.int32), LARGEST_WORD, out=self._norms)

    @override
    def take(self, received: Tensor) -> None:
        """With NaN unless all ranks agree, then and before."""
        assert received is self.sent
        self._agreement.take(self.header, self._norms, self._maxima.view(torch.int32))
        if len(self._rows) > 1:
            maxima = list(torch.split(self._maxima, self._blocks))
            torch._foreach_copy_([row.max_norms for row in self._rows], maxima)


@dataclass(frozen=True)
class _SpoiledSum(Waitable):
    work: Waitable
    values: Tensor
    differ: Tensor

    @override
    def wait(self) -> None:
        self.work.wait()
        self.values.masked_fill_(self.differ, torch.nan)


class DeviceAgreement(Agreement, Questions):
    """What the pieces of an engine have found: the header of the last one, or of the first that was not the same.

    resolved, worker: see Fingerprints. communicator: of tensors on the device.
    """

    def __init__(self, resolved: ResolvedConfig, worker: int, device: torch.device, communicator: Communicator) -> None:
        self.device = device
        self._communicator = communicator
        self._fingerprints = Fingerprints(resolved, worker)
        self._pieces: list[Known] = []
        self._questions: dict[tuple[Contents, int], DeviceMessage] = {}
        self._header = torch.tensor([0, 0, LARGEST_WORD, 0], dtype=torch.int32, device=device)
        self._differ = torch.zeros((), dtype=torch.bool, device=device)
        self._total = torch.zeros((), dtype=torch.int64, device=device)
        self._nan = torch.tensor(_NAN, dtype=torch.int32, device=device)
        self._copy = torch.empty(_HEADER_WORDS, dtype=torch.int32, pin_memory=True) if device.type == "cuda" else None
        self._copied: torch.cuda.Event | None = None

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._fingerprints.use_loss_scale(scale)

    def words(self, identity: Known, round: int) -> tuple[int, int]:
        """See Fingerprints."""
        return self._fingerprints.words(identity, round)

    @override
    def message(
        self, names: Sequence[str], columns: int, label: str, layout: str, rows: Sequence[MeasuredRow]
    ) -> DeviceMessage:
        identity = self._fingerprints.of(names, columns, label, layout)
        if identity not in self._pieces:
            self._pieces.append(identity)
        return DeviceMessage(self, identity, self._pieces.index(identity), rows)

    @override
    def require_same(self, contents: Contents, size: int, round: int, *facts: str) -> None:
        """See Questions; nobody waits, look() and wait() tell."""
        key = (contents, size)
        message = self._questions.get(key)
        if message is None:
            name, label = f"{contents.label} uncompressed", f"{contents.label} ({size} elements)"
            message = self._questions[key] = self.message([name], size, label, contents.layout, ())
        message.begin(round)
        self._communicator.max_(message.sent).wait()
        self.take(message.header, self._total.new_empty(0, dtype=torch.int32), self._header[:0])

    def take(self, header: Tensor, received: Tensor, max_norms: Tensor) -> None:
        """Note what has arrived, and write the maxima, NaN unless all ranks agree, then and before. int32[B]."""
        torch.where(self._differ, self._header, header, out=self._header)
        torch.sum(self._header[_OWN_WORDS:], dim=0, out=self._total)
        torch.ne(self._total, LARGEST_WORD, out=self._differ)
        torch.where(self._differ, self._nan, received, out=max_norms)

    def spoiled(self, exact: ExactSum) -> ExactSum:
        """Return sums that are NaN unless all ranks agree when they are waited for."""
        return lambda values: _SpoiledSum(exact(values), values, self._differ)

    @override
    def look(self) -> InputError | None:
        """Return the error if it is known here that the ranks do not agree. Waits for nothing.

        On a GPU it asks for what later calls tell: what is known may be some steps old.
        """
        if self._copy is None:
            return self._error(self._header)
        if self._copied is not None:
            if not self._copied.query():  # type: ignore[no-untyped-call]
                return None
            if (error := self._error(self._copy)) is not None:
                return error
        self._copy.copy_(self._header, non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()
        return None

    @override
    def wait(self) -> InputError | None:
        return self._error(self._header)

    def _error(self, header: Tensor) -> InputError | None:
        number, round, largest, complement = header.tolist()
        if largest + complement == LARGEST_WORD:
            return None
        return self._fingerprints.mismatch(self._pieces[number], round, (largest, complement), _OUTCOME)
