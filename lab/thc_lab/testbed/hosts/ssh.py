"""A host that is reached by ssh, with the keys, agent and known hosts that OpenSSH's client would use."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from byteps_thc.errors import ConfigurationError, TransportError
from thc_lab.testbed.hosts.host import Host, Outcome

if TYPE_CHECKING:
    import asyncssh

CONNECT_TIMEOUT_S = 20.0
#: A connection on which nothing answers for the product of both is given up.
_KEEPALIVE_S, _KEEPALIVES = 10, 3


class SshHost(Host):
    """One connection, with a channel for every command. It asks no questions: no passwords, no unknown host keys."""

    def __init__(self, name: str, python: str, connection: asyncssh.SSHClientConnection) -> None:
        self.name = name
        self.python = python
        self._connection = connection

    @classmethod
    async def connect(cls, name: str, python: str, target: str) -> SshHost:
        """Log in. target: [USER@]HOST, where HOST may be one of ~/.ssh/config. TransportError says why it cannot."""
        try:
            import asyncssh  # only here: namespaces need no ssh
        except ImportError:
            raise ConfigurationError("ssh needs asyncssh: pip install 'asyncssh>=2.18'") from None
        user, _, host = target.rpartition("@")
        try:
            connection = await asyncssh.connect(
                host,
                username=user or (),
                connect_timeout=CONNECT_TIMEOUT_S,
                login_timeout=CONNECT_TIMEOUT_S,
                keepalive_interval=_KEEPALIVE_S,
                keepalive_count_max=_KEEPALIVES,
                password=None,
            )
        except asyncssh.HostKeyNotVerifiable as error:
            raise TransportError(f"{name}: {error}. Compare and accept its key once: ssh {target} true") from error
        except asyncssh.PermissionDenied as error:
            hint = f"Give it a key: ssh-copy-id {target}, and unlock yours: ssh-add"
            raise TransportError(f"{name}: {target} refuses the login: {error.reason}. {hint}") from error
        except (OSError, asyncssh.Error, TimeoutError) as error:
            raise TransportError(f"{name}: {target} is not reached by ssh: {error or 'no answer in time'}") from error
        return cls(name, python, connection)

    async def run(self, argv: Sequence[str], *, text: str = "", timeout_s: float) -> Outcome:
        """See Host."""
        import asyncssh

        try:
            done = await asyncio.wait_for(
                self._connection.run(shlex.join(argv), input=text, encoding="utf-8", errors="replace"), timeout_s
            )
        except TimeoutError:
            raise TransportError(f"{self.name}: `{shlex.join(argv)}` did not end within {timeout_s:g} s") from None
        except (OSError, asyncssh.Error) as error:
            raise TransportError(f"the ssh connection to {self.name} has failed: {error}") from error
        # A command that a signal has ended has no exit status.
        return Outcome(-1 if done.exit_status is None else done.exit_status, str(done.stdout), str(done.stderr))

    async def stream(self, argv: Sequence[str], *, text: str) -> AsyncIterator[str]:
        """See Host."""
        import asyncssh

        try:
            async with self._connection.create_process(shlex.join(argv), encoding="utf-8", errors="replace") as process:
                process.stdin.write(text)
                async for line in process.stdout:
                    yield str(line).rstrip("\n")
        except (OSError, asyncssh.Error) as error:
            raise TransportError(f"the ssh connection to {self.name} has failed: {error}") from error

    async def close(self) -> None:
        """See Host."""
        self._connection.close()
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(self._connection.wait_closed(), CONNECT_TIMEOUT_S)
