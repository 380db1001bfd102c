"""A session with a switch that asks thc-ps for the same sums and compares them bit for bit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from byteps_thc._base.arrays import F32, U8, U16
from byteps_thc._base.errors import ThcError
from byteps_thc._native import _comm
from byteps_thc._net.session import Session

#: Counter of results that were compared.
COMPARED = "compared_with_thc_ps"


class DifferentSumError(ThcError):
    """The switch and thc-ps made different results of the same packets."""


@dataclass(frozen=True)
class _Check:
    """A stage at thc-ps, and the arrays that must be equal when both stages are over: (name, switch's, thc-ps's)."""

    stage: _comm.Operation
    arrays: tuple[tuple[str, Any, Any], ...]
    partition: int


class CheckedSession(Session):
    """Pushes everything to a second session too; wait() raises DifferentSumError unless the results agree.

    reference: an open session with thc-ps of the same worker and settings, which this one closes. Further arguments are
    Session's.
    """

    def __init__(self, reference: Session, servers: Sequence[str], **settings: Any) -> None:
        self._reference = reference
        self._checks: dict[_comm.Operation, _Check] = {}
        self._compared = 0
        try:
            super().__init__(servers, **settings)
        except BaseException:
            reference.close()
            raise

    @override
    def push_norms(self, partition: int, norms: F32, max_norms: F32, *, compared: int = 0) -> _comm.Operation:
        expected = np.empty_like(max_norms)
        stage = self._reference.push_norms(partition, norms, expected, compared=compared)
        handle = super().push_norms(partition, norms, max_norms, compared=compared)
        self._checks[handle] = _Check(stage, (("maximum norms", max_norms, expected),), partition)
        return handle

    @override
    def push_codes(self, partition: int, codes: U8, aggregate: U8 | U16, contributions: U8) -> _comm.Operation:
        expected, workers = np.empty_like(aggregate), np.empty_like(contributions)
        stage = self._reference.push_codes(partition, codes, expected, workers)
        handle = super().push_codes(partition, codes, aggregate, contributions)
        arrays = (("aggregate", aggregate, expected), ("contributions", contributions, workers))
        self._checks[handle] = _Check(stage, arrays, partition)
        return handle

    @override
    def wait(self, stage: _comm.Operation, timeout: float | None = None) -> None:
        super().wait(stage, timeout)
        check = self._checks.pop(stage, None)
        if check is not None:
            self._reference.wait(check.stage, timeout)
            self._compare(check)

    def _compare(self, check: _Check) -> None:
        for name, own, expected in check.arrays:
            if own.tobytes() != expected.tobytes():
                place = int(np.flatnonzero(own.view(np.uint8) != expected.view(np.uint8))[0]) // own.itemsize
                raise DifferentSumError(
                    f"{name} of partition {check.partition} differ at element {place}: {own[place]} from the switch, "
                    f"{expected[place]} from thc-ps"
                )
        self._compared += 1

    @override
    def counters(self) -> dict[str, int]:
        """Return the counters of the session with the switch, and the number of compared results."""
        return super().counters() | {COMPARED: self._compared}

    @override
    def close(self) -> None:
        super().close()
        self._reference.close()
