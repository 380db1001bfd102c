"""A server that answers nothing: said in the log once, long before a deadline says it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

_logger = logging.getLogger("byteps_thc")

#: Seconds without an answer after which the log says so. Moves of ranks with failover come earlier.
SILENT_S = 5.0


class SilenceLog:
    """Says once of each server that it is silent, and again only if it has answered in between. Any thread may look.

    servers: their addresses. deadline_s: how long a partition may have no result.
    """

    def __init__(self, servers: Sequence[str], deadline_s: float) -> None:
        self._servers, self._deadline_s = tuple(servers), deadline_s
        self._said = [False] * len(self._servers)
        self._lock = threading.Lock()

    def look(self, heard: Sequence[float], unanswered: Sequence[tuple[float, int]]) -> None:
        """Take in what Session.heard() and Session.unanswered() say now."""
        with self._lock:
            for number, (ago_s, (waiting_s, port)) in enumerate(zip(heard, unanswered, strict=True)):
                if ago_s < SILENT_S:
                    self._said[number] = False
                elif waiting_s >= SILENT_S and not self._said[number]:
                    self._said[number] = True
                    self._say(number, ago_s, waiting_s, port)

    def _say(self, number: int, ago_s: float, waiting_s: float, port: int) -> None:
        _logger.warning(
            "server %s has been silent for %.1f s: a packet to its port %d has had no answer for %.1f s, although this "
            "worker repeats it, nor has a question whether the server is there. The step resumes when the server "
            "answers; with failover ranks use other servers meanwhile, without failover the step ends with "
            "DeadlineError after %g s. Check that thc-ps runs there, and the way to it",
            self._servers[number],
            ago_s,
            port,
            waiting_s,
            self._deadline_s,
        )
