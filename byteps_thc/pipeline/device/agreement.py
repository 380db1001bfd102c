"""Do all ranks average the same gradient? Asked as in host memory (fingerprint.py), answered on the device.

Nobody waits for the answer, so codes are sent in any case. From the first gradient on that is not the same everywhere,
all ranks get NaN as maximum of the norms: averages are NaN and residuals stay. The host learns of it later.
"""

from __future__ import annotations

import torch
from torch import Tensor

from byteps_thc.config import ResolvedConfig
from byteps_thc.errors import InputError
from byteps_thc.pipeline.agreement import Contents
from byteps_thc.pipeline.fingerprint import LARGEST_WORD, Fingerprints, Known
from byteps_thc.transport.transport import FINGERPRINT_WORDS

_NAN = 0x7FC00000
_OWN_WORDS = 2  # the gradient's number and its round, which do not travel
_HEADER_WORDS = _OWN_WORDS + FINGERPRINT_WORDS
_OUTCOME = "Compressed averages are NaN from there on"


class NormMessage:
    """What travels before the codes of a buffer: its fingerprint and norms, as integers, which are ordered like them.

    fingerprints: of the engine. number: of the buffer in its DeviceAgreement. norms: float32[B].
    """

    def __init__(self, fingerprints: Fingerprints, identity: Known, number: int, norms: Tensor) -> None:
        self._fingerprints, self._identity = fingerprints, identity
        words = torch.zeros(_HEADER_WORDS + norms.numel(), dtype=torch.int32, device=norms.device)
        words[0] = number
        self.header, self._norms = words[:_HEADER_WORDS], words[_HEADER_WORDS:]
        #: int32[2 + B], to be replaced by the maxima over the ranks
        self.sent = words[_OWN_WORDS:]
        self._measured = norms.view(torch.int32)
        self._round_words = self.header[1:].unbind()

    def begin(self, round: int) -> None:
        """Begin a round: write the words that depend on its number."""
        own = (round & LARGEST_WORD, *self._fingerprints.words(self._identity, round))
        for word, value in zip(self._round_words, own, strict=True):
            word.fill_(value)  # as numbers: a copy from host memory would wait

    def write(self) -> None:
        """Put in what was measured, with NaN above infinity."""
        torch.bitwise_and(self._measured, LARGEST_WORD, out=self._norms)

    @property
    def max_norms(self) -> Tensor:
        """Int32[B], of all ranks, once `sent` has the maxima."""
        return self._norms


class DeviceAgreement:
    """What the buffers of an engine have found: the header of the last one, or of the first that was not the same.

    resolved, worker: see Fingerprints.
    """

    def __init__(self, resolved: ResolvedConfig, worker: int, device: torch.device) -> None:
        self._fingerprints = Fingerprints(resolved, worker)
        self._buffers: list[Known] = []
        self._header = torch.tensor([0, 0, LARGEST_WORD, 0], dtype=torch.int32, device=device)
        self._differ = torch.zeros((), dtype=torch.bool, device=device)
        self._total = torch.zeros((), dtype=torch.int64, device=device)
        self._nan = torch.tensor(_NAN, dtype=torch.int32, device=device)
        self._copy = torch.empty(_HEADER_WORDS, dtype=torch.int32, pin_memory=True) if device.type == "cuda" else None
        self._copied: torch.cuda.Event | None = None

    def use_loss_scale(self, scale: float) -> None:
        """Gradients are multiplied by it from now on."""
        self._fingerprints.use_loss_scale(scale)

    def message(self, key: str, size: int, contents: Contents, norms: Tensor) -> NormMessage:
        """Return the words of a new buffer of `size` elements. norms: float32[B], none where nothing is compressed."""
        identity = self._fingerprints.of([key], size, f"{contents.label} ({size} elements)", contents.layout)
        if identity not in self._buffers:
            self._buffers.append(identity)
        return NormMessage(self._fingerprints, identity, self._buffers.index(identity), norms)

    def take(self, message: NormMessage, max_norms: Tensor) -> None:
        """Write the maxima that have arrived, NaN unless all ranks agree, then and before. max_norms: int32[B]."""
        torch.where(self._differ, self._header, message.header, out=self._header)
        torch.sum(self._header[_OWN_WORDS:], dim=0, out=self._total)
        torch.ne(self._total, LARGEST_WORD, out=self._differ)
        torch.where(self._differ, self._nan, message.max_norms, out=max_norms)

    @property
    def differ(self) -> Tensor:
        """bool[], on the device: whether ranks have been found that average something else."""
        return self._differ

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

    def wait(self) -> InputError | None:
        """As look(), for all that is on the current stream, which it waits for."""
        return self._error(self._header)

    def _error(self, header: Tensor) -> InputError | None:
        number, round, largest, complement = header.tolist()
        if largest + complement == LARGEST_WORD:
            return None
        return self._fingerprints.mismatch(self._buffers[number], round, (largest, complement), _OUTCOME)
