"""Servers that answer HELLO but deliver nothing: packets or results of some size, or of one port, are lost."""

from __future__ import annotations

from collections.abc import Sequence

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
