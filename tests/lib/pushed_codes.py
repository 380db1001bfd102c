"""Codes pushed through a Session, with the arrays that their sums come in."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from byteps_thc._base.arrays import U8, U16
from byteps_thc._native import _comm
from byteps_thc._net.session import Session


@dataclass
class PushedCodes:
    """A push_codes() in flight. aggregate, contributions: valid after wait()."""

    session: Session
    stage: _comm.Operation
    aggregate: U8 | U16
    contributions: U8

    def wait(self, timeout: float | None = None) -> Self:
        """Return this, with its sums."""
        self.session.wait(self.stage, timeout)
        return self


def push_codes(session: Session, partition: int, codes: U8, *, count: int | None = None) -> PushedCodes:
    """Push packed codes; count: how many, None for all that fit."""
    count = codes.size * 8 // session.code_bits if count is None else count
    aggregate, contributions = session.new_aggregate(count), np.empty(session.chunks(count), np.uint8)
    return PushedCodes(
        session, session.push_codes(partition, codes, aggregate, contributions), aggregate, contributions
    )
