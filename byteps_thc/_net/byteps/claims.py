"""What a DistributedOptimizer has for itself in its process: names of parameters, job numbers, local ports."""

from __future__ import annotations

import gc
from collections.abc import Collection, Hashable
from weakref import WeakSet

from byteps_thc._net.ending import collect_forgotten


class Claim:
    """Things of one holder, until release() or until nobody holds the claim any more."""

    def __init__(self) -> None:
        self.things: set[Hashable] = set()

    def add(self, things: Collection[Hashable]) -> None:
        """Claim more things."""
        self.things.update(things)

    def release(self) -> None:
        """Let others claim the things. May be called again."""
        self.things.clear()


class Claims:
    """All claims of a process."""

    def __init__(self) -> None:
        self._claims: WeakSet[Claim] = WeakSet()

    def open(self) -> Claim:
        """Return a claim of nothing yet, and drop the claims of holders that are garbage.

        Python collects garbage at another time on each worker. Workers have to find the same claims.
        """
        if self._claims:
            gc.collect()
            collect_forgotten()  # claims are released in threads
        claim = Claim()
        self._claims.add(claim)
        return claim

    def taken(self, things: Collection[Hashable]) -> list[Hashable]:
        """Return those of the things that are claimed."""
        return [thing for thing in things if any(thing in claim.things for claim in self._claims)]

    def clear(self) -> None:
        """Release everything."""
        for claim in self._claims:
            claim.release()
