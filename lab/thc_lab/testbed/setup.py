"""Steps of a host's set-up: whether one is done, doing it, undoing it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from byteps_thc.errors import ConfigurationError
from thc_lab.testbed.hosts.host import Host, Outcome
from thc_lab.testbed.hosts.kept import KeptHost
from thc_lab.testbed.process import SetupStep

_CHECK_TIMEOUT_S = 30.0
#: Reserving huge pages moves memory about.
_STEP_TIMEOUT_S = 180.0
#: Of a step's output, in an error.
_LAST_LINES = 3


class Undoable:
    """Runs steps on one host: as root, by sudo where the login is another user's."""

    def __init__(self, host: Host, as_root: Sequence[str]) -> None:
        self._host = host
        self._as_root = as_root

    @classmethod
    async def on(cls, kept: KeptHost) -> Undoable:
        """Find out who we are there."""
        user = (await kept.probe((), ()))["user_id"]
        return cls(kept.host, () if user == 0 else ("sudo", "-n"))

    async def is_done(self, step: SetupStep) -> bool:
        """Whether it is so already; a step that cannot tell is not."""
        if not step.done:
            return False
        return (await self._host.run(step.done, timeout_s=_CHECK_TIMEOUT_S)).status == 0

    async def do(self, step: SetupStep) -> None:
        """ConfigurationError when it fails, or has no effect."""
        outcome = await self._run(step, step.do)
        if step.done and not await self.is_done(step):
            raise ConfigurationError(
                f"{self._host.name}: {step.what}: `{shlex.join(step.do)}` has run, and `{shlex.join(step.done)}` still "
                f"fails{_last_words(outcome)}"
            )

    async def undo(self, step: SetupStep) -> None:
        """ConfigurationError when it fails. Nothing happens where it is undone already."""
        if step.undo and (not step.done or await self.is_done(step)):
            await self._run(step, step.undo)

    async def _run(self, step: SetupStep, argv: Sequence[str]) -> Outcome:
        command = [*self._as_root, *argv]
        outcome = await self._host.run(command, timeout_s=_STEP_TIMEOUT_S)
        if outcome.status != 0:
            hint = "; the login needs root, or sudo without a password" if self._as_root else ""
            raise ConfigurationError(
                f"{self._host.name}: {step.what}: `{shlex.join(command)}` failed with {outcome.reason}{hint}"
            )
        return outcome


def _last_words(outcome: Outcome) -> str:
    """dpdk-devbind.py ends well, too, when it leaves an active interface alone; it says so."""
    lines = [line.strip() for line in (outcome.output + "\n" + outcome.errors).splitlines() if line.strip()]
    return f". It said: {' | '.join(lines[-_LAST_LINES:])}" if lines else ""
