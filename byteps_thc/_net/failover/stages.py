"""Keeps a worker's pushes as long as any worker may need them again."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from byteps_thc._base.arrays import F32, U8, U16
from byteps_thc._base.errors import ThcError, TransportError
from byteps_thc._native import _comm
from byteps_thc._net.session import Session


@dataclass(eq=False)
class NormStage:
    """Pushed norms. number: of norms before this stage. norms: a copy. follows: number of the last norms with the same
    max_norms, whose round was then over on this worker; None: no earlier norms.
    """

    number: int
    partition: int
    norms: F32
    max_norms: F32
    compared: int
    follows: int | None
    operation: _comm.Operation | None = None
    done: bool = False

    def push(self, session: Session) -> None:
        """Push it, perhaps again; a stage that has its result gets it once more, elsewhere."""
        into = np.empty_like(self.max_norms) if self.done else self.max_norms
        self.operation = session.push_norms(self.partition, self.norms, into, compared=self.compared)


@dataclass(eq=False)
class CodeStage:
    number: int
    partition: int
    codes: U8
    aggregate: U8 | U16
    contributions: U8
    operation: _comm.Operation | None = None
    done: bool = False

    def push(self, session: Session) -> None:
        aggregate = np.empty_like(self.aggregate) if self.done else self.aggregate
        contributions = np.empty_like(self.contributions) if self.done else self.contributions
        self.operation = session.push_codes(self.partition, self.codes, aggregate, contributions)


Stage = NormStage | CodeStage


#: Unfinished stages, ascending: 0 for norms or 1 for codes, and the number.
Missing = tuple[tuple[int, int], ...]


class KeptStages:
    """The stages of one worker, in the order of their pushes, the same on all workers. By one thread at a time.

    Codes come after norms of the same number. A worker pushes norms into the same max_norms again only once it has the
    sums of the last ones, and of all earlier pushes.
    """

    def __init__(self) -> None:
        self._norms: dict[int, NormStage] = {}
        self._codes: dict[int, CodeStage] = {}
        self._next_norms = self._next_codes = 0
        # The array is kept with the number: another array must not get its id.
        self._last_into: dict[int, tuple[F32, int]] = {}

    def new_norms(self, partition: int, norms: F32, max_norms: F32, compared: int) -> NormStage:
        number, self._next_norms = self._next_norms, self._next_norms + 1
        _, follows = self._last_into.get(id(max_norms), (None, None))
        self._last_into[id(max_norms)] = max_norms, number
        stage = NormStage(number, partition, norms.copy(), max_norms, compared, follows)
        self._norms[number] = stage
        return stage

    def new_codes(self, partition: int, codes: U8, aggregate: U8 | U16, contributions: U8) -> CodeStage:
        number, self._next_codes = self._next_codes, self._next_codes + 1
        stage = CodeStage(number, partition, codes, aggregate, contributions)
        self._codes[number] = stage
        return stage

    def finish(self, stage: Stage) -> None:
        """Note the result of a stage; forget the stages that all workers must therefore have finished."""
        stage.done = True
        if isinstance(stage, CodeStage):
            # All have pushed these codes, so all had the maximum of their norms, and of earlier norms.
            _forget(self._norms, stage.number)
        elif stage.follows is not None:
            # All have pushed these norms, so all have the sums of the round before, and of all earlier pushes.
            _forget(self._codes, stage.follows)

    def settle(self, session: Session) -> None:
        """Note the results that a closed session still got."""
        for stage in [*self._unfinished()]:
            if stage.operation is not None and _has_result(session, stage.operation):
                self.finish(stage)

    def oldest_unfinished(self) -> Stage | None:
        return next(self._unfinished(), None)

    def missing(self) -> Missing:
        norms = ((0, number) for number, stage in self._norms.items() if not stage.done)
        codes = ((1, number) for number, stage in self._codes.items() if not stage.done)
        return (*norms, *codes)

    def push_again(self, session: Session, missing: Missing) -> int:
        """Push again, in another session, this worker's stages that any worker lacks; return their number."""
        kinds = (self._norms, self._next_norms), (self._codes, self._next_codes)
        stages = [_of_number(kinds[kind][0], number) for kind, number in missing if number < kinds[kind][1]]
        for stage in stages:
            stage.push(session)
        return len(stages)

    def _unfinished(self) -> Iterator[Stage]:
        yield from (stage for stage in self._codes.values() if not stage.done)
        yield from (stage for stage in self._norms.values() if not stage.done)


def _forget(kept: dict[int, NormStage] | dict[int, CodeStage], last: int) -> None:
    """Forget stages up to the number `last`; dictionaries are in the order of numbers."""
    while kept and (first := next(iter(kept))) <= last:
        del kept[first]


def _of_number(kept: dict[int, NormStage] | dict[int, CodeStage], number: int) -> Stage:
    stage = kept.get(number)
    if stage is None:  # a fault of KeptStages; ignoring it would part the ranks' streams
        raise TransportError(f"another rank lacks stage {number}, which this rank no longer has: restart the training")
    return stage


def _has_result(session: Session, operation: _comm.Operation) -> bool:
    if not operation.done:  # also if compared words differ: the error comes again
        return False
    try:
        session.wait(operation, 0.0)
    except ThcError:
        return False
    return True
