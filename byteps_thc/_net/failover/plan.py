"""The plan of a move to other servers, from the statements of all ranks."""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from byteps_thc._net.failover.stages import Missing

_NAMED = re.compile(r"\bserver (\d+\.\d+\.\d+\.\d+|\[[^\]]+\]):(\d+)")
#: ask_servers()'s word for a server that accepts workers.
THERE = "there"
#: A rank's word for a server that is there, but does not deliver this rank's results.
UNDELIVERED = "answering but delivering nothing"


@dataclass(frozen=True)
class Statement:
    """A rank's statement after leaving its session. presences: of each configured server, as from ask_servers().

    tired: it has tried for its whole deadline. fruitless: moves have brought no result for as long.
    """

    missing: Missing
    presences: tuple[str, ...]
    tired: bool
    fruitless: bool = False

    def as_text(self) -> str:
        return json.dumps([self.missing, self.presences, self.tired, self.fruitless])

    @classmethod
    def from_text(cls, text: str) -> Self:
        missing, presences, tired, fruitless = json.loads(text)
        return cls(tuple((kind, number) for kind, number in missing), tuple(presences), bool(tired), bool(fruitless))


@dataclass(frozen=True)
class Plan:
    """The plan of a move, the same on all ranks.

    servers: that all reach. undelivered: servers that deliver nothing to a rank. missing: stages that any rank lacks.
    """

    servers: tuple[int, ...]
    undelivered: tuple[int, ...]
    missing: Missing
    given_up: bool
    fruitless: bool = False

    @classmethod
    def of(cls, everyone: Sequence[Statement], refusing: Collection[int] = ()) -> Self:
        """Return the plan for all ranks' statements. refusing: servers to avoid if another one answers."""
        by_server = [*zip(*(each.presences for each in everyone), strict=True)]
        answering = {n: seen for n, seen in enumerate(by_server) if {*seen} <= {THERE, UNDELIVERED}}
        there = tuple(number for number, seen in answering.items() if UNDELIVERED not in seen)
        # An undelivering server is better than none. With two, ranks could leave them in turns for ever.
        return cls(
            tuple(number for number in there if number not in refusing) or there or tuple(answering)[:1],
            tuple(number for number, seen in enumerate(by_server) if UNDELIVERED in seen),
            tuple(sorted({stage for each in everyone for stage in each.missing})),
            any(each.tired for each in everyone),
            any(each.fruitless for each in everyone),
        )


def why_none(servers: Sequence[str], everyone: Sequence[Statement]) -> str:
    """Describe the servers that not all ranks reach, with the ranks."""
    words = []
    for number, server in enumerate(servers):
        ranks: dict[str, list[int]] = {}
        for rank, each in enumerate(everyone):
            ranks.setdefault(each.presences[number], []).append(rank)
        ranks.pop(THERE, None)
        words += [f"{server} is {what} for rank {', '.join(map(str, who))}" for what, who in sorted(ranks.items())]
    return "; ".join(words)


def named_in(error: str, addresses: Sequence[str]) -> int | None:
    """Return the server with one of the addresses (IP:PORT) in an error of joining; shards' ports follow its own."""
    match = _NAMED.search(error)
    if match is None:
        return None
    places = enumerate(address.rpartition(":") for address in addresses)
    ports = {number: int(port) for number, (ip, _, port) in places if ip == match[1] and int(port) <= int(match[2])}
    return max(ports, key=ports.__getitem__, default=None)
