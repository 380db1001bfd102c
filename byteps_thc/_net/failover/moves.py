"""A move to other servers: what ranks tell each other, and what follows from it for all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from byteps_thc._net.failover.stages import Missing

_NAMED = re.compile(r"\bserver (\d+\.\d+\.\d+\.\d+):(\d+)")
#: What ask_servers() says of a server that workers may come to.
THERE = "there"
#: What a rank says of a server that is there, but does not deliver what this rank needs.
UNDELIVERED = "answering but delivering nothing"


@dataclass(frozen=True)
class Statement:
    """What a rank says when it has left its session. presences: of each configured server, as ask_servers() has them.

    tired: it has tried for as long as it waits for anything.
    """

    missing: Missing
    presences: tuple[str, ...]
    tired: bool

    def as_text(self) -> str:
        """Return it as from_text() takes it."""
        return json.dumps([self.missing.norms, self.missing.codes, self.presences, self.tired])

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return what as_text() was called on."""
        norms, codes, presences, tired = json.loads(text)
        return cls(Missing(tuple(norms), tuple(codes)), tuple(presences), bool(tired))


@dataclass(frozen=True)
class Plan:
    """What all ranks do, the same on all of them.

    servers: numbers of those that all reach. undelivered: of those that deliver nothing to a rank. missing: what any
    rank lacks.
    """

    servers: tuple[int, ...]
    undelivered: tuple[int, ...]
    missing: Missing
    given_up: bool

    @classmethod
    def of(cls, everyone: Sequence[Statement], refusing: Collection[int] = ()) -> Self:
        """Return what follows from what all ranks have said. refusing: servers not to use if another is there."""
        by_server = [*zip(*(each.presences for each in everyone), strict=True)]
        answering = {n: seen for n, seen in enumerate(by_server) if {*seen} <= {THERE, UNDELIVERED}}
        there = tuple(number for number, seen in answering.items() if UNDELIVERED not in seen)
        # One that delivers nothing is better than none. With two, ranks could leave them in turns for ever.
        return cls(
            tuple(number for number in there if number not in refusing) or there or tuple(answering)[:1],
            tuple(number for number, seen in enumerate(by_server) if UNDELIVERED in seen),
            Missing.of_any(each.missing for each in everyone),
            any(each.tired for each in everyone),
        )


def why_none(servers: Sequence[str], everyone: Sequence[Statement]) -> str:
    """Return which server is what for which ranks, of servers that not all ranks reach."""
    words = []
    for number, server in enumerate(servers):
        ranks: dict[str, list[int]] = {}
        for rank, each in enumerate(everyone):
            ranks.setdefault(each.presences[number], []).append(rank)
        ranks.pop(THERE, None)
        words += [f"{server} is {what} for rank {', '.join(map(str, who))}" for what, who in sorted(ranks.items())]
    return "; ".join(words)


def named_in(error: str, addresses: Sequence[str]) -> int | None:
    """Return which server, of those at these addresses (IP:PORT), an error of joining is about. A shard's port follows
    that of its server."""
    match = _NAMED.search(error)
    if match is None:
        return None
    ports = {}
    for number, address in enumerate(addresses):
        ip, _, port = address.partition(":")
        if ip == match[1] and int(port) <= int(match[2]):
            ports[number] = int(port)
    return max(ports, key=ports.__getitem__, default=None)


#: Seconds, and a port, as Session.unanswered() has them.
Unanswered = tuple[float, int]

#: A rank leaves a server that has answered a packet neither with a result nor with a notice for so long.
UNDELIVERED_S = 10.0
#: A server delivers if no packet has waited for an answer for longer than this share of UNDELIVERED_S.
_DELIVERING = 0.1


def undelivered(packets: Sequence[Unanswered]) -> list[int]:
    """Return places of servers that deliver nothing, if another one delivers.

    packets: what each server of a session has not answered for longest. A server that waits for a slow rank sends
    notices, and is none of these.
    """
    others_deliver = any(seconds < _DELIVERING * UNDELIVERED_S for seconds, _ in packets)
    return [place for place, (seconds, _) in enumerate(packets) if others_deliver and seconds >= UNDELIVERED_S]


def describe(server: str, packet: Unanswered) -> str:
    """Return why ranks leave a server, and what to check."""
    seconds, port = packet
    return (
        f"{server} answers, but has delivered nothing from port {port} for {seconds:.1f} s: check "
        "firewalls for UDP on all ports of the server, and the MTU of the path"
    )
