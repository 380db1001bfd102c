"""Do all ranks average the same gradient? Asked as in host memory (fingerprint.py), answered on the device.

Nobody waits for the answer, so codes are sent in any case. From the first gradient on that is not the same everywhere,
all ranks get NaN as maximum of the norms: averages are NaN and residuals stay. The host learns of it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc.config import ResolvedConfig
from byteps_thc.device_message import HEADER_WORDS, OWN_WORDS, Message
from byteps_thc.errors import InputError
from byteps_thc.pipeline.agreement import Contents, Questions
from byteps_thc.pipeline.fingerprint import LARGEST_WORD, Agreement, Fingerprints, Known, NormMessage
from byteps_thc.transport.communicator import Communicator, ExactSum, Waitable

_OUTCOME = "Compressed averages are NaN from there on"


class JoinedRow(Protocol):
    """See rows.DeviceRow: a row whose kernels write and read what travels."""

    norms: Tensor

    def join(self, message: DeviceMessage) -> None:
        """Put the header of this message, and norms, to its words, and take them from there, from now on."""


class DeviceMessage(NormMessage):
    """int32[words] on the device. number: of the piece in its DeviceAgreement. rows: at most one, of all norms; none:
    nothing is compressed.
    """

    def __init__(self, agreement: DeviceAgreement, identity: Known, number: int, rows: Sequence[JoinedRow]) -> None:
        self._agreement, self._identity, self._number = agreement, identity, number
        blocks = sum(row.norms.numel() for row in rows)
        words = torch.zeros(HEADER_WORDS + blocks, dtype=torch.int32, device=agreement.device)
        self.memory = Message(words, agreement.state, agreement.differ)
        self.sent = words[OWN_WORDS:]
        #: what the first words are in this round
        self.header = (number, 0, 0, 0)
        for row in rows:
            row.join(self)

    @override
    def begin(self, round: int) -> None:
        self.header = (self._number, round & LARGEST_WORD, *self._agreement.words(self._identity, round))

    @override
    def write(self) -> None:
        """Do nothing: the rows have written all."""

    @override
    def take(self, received: Tensor) -> None:
        """Do nothing: the rows take NaN unless all ranks agree, then and before."""
        assert received is self.sent


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
        self._fingerprints = Fingerprints(resolved.identity, worker)
        self._pieces: list[Known] = []
        self._questions: dict[tuple[Contents, int], DeviceMessage] = {}
        #: see Message
        self.state = torch.tensor([0, 0, LARGEST_WORD, 0], dtype=torch.int32, device=device)
        self.differ = torch.zeros((), dtype=torch.bool, device=device)
        self._copy = (
            torch.empty(HEADER_WORDS, dtype=torch.int32, pin_memory=True, device="cpu")
            if device.type == "cuda"
            else None
        )
        self._copied: torch.cuda.Event | None = None

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._fingerprints.use_loss_scale(scale)

    def words(self, identity: Known, round: int) -> tuple[int, int]:
        """See Fingerprints."""
        return self._fingerprints.words(identity, round)

    @override
    def message(
        self, names: Sequence[str], columns: int, label: str, layout: str, rows: Sequence[Any]
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
        message.memory.write(message.header)
        self._communicator.max_(message.sent).wait()
        message.memory.take(self.state[:0].view(torch.float32))

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
