"""What a host has to be able to do: run a command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Outcome:
    """What a command left."""

    status: int
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """Why it failed: the last lines of its messages, and the exit status."""
        lines = [line.strip() for line in (self.errors or self.output).splitlines() if line.strip()]
        return f"exit status {self.status}" + (f": {' | '.join(lines[-3:])}" if lines else "")


class Host(Protocol):
    """A host that was reached. Everything raises TransportError, which names the host, when it is reached no more."""

    name: str
    #: absolute path of its Python with byteps_thc
    python: str

    async def run(self, argv: Sequence[str], *, text: str = "", timeout_s: float) -> Outcome:
        """Run a command to its end, with this text as its input. TransportError when it does not end in time."""

    def stream(self, argv: Sequence[str], *, text: str) -> AsyncIterator[str]:
        """Lines of the output of a command that runs until the iteration is left. Its input stays open."""

    async def close(self) -> None:
        """Let go of the host. May be called again."""
