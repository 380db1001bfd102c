"""SSH servers of a test's own on loopback, and the user folder (HOME) of a client that they let in.

`python ssh_servers.py FOLDER` is the one of asyncssh: a complete SSH server in Python. It prints its port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 60.0
#: Name of the server for the client.
ALIAS = "thc-test-host"


def make_keys(folder: Path) -> None:
    """Keys of the host and of the user, and what each knows of the other."""
    import asyncssh

    for name in ("host_key", "user_key"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / name)
        (folder / name).chmod(0o600)
        key.write_public_key(folder / f"{name}.pub")
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    (folder / "authorized_keys").chmod(0o600)


def make_home(folder: Path, port: int, *, key: str = "user_key") -> Path:
    """The client's user folder: its configuration, its key and the host's."""
    ssh = folder / "home/.ssh"
    ssh.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copy(folder / key, ssh / "id_ed25519")
    host_key = (folder / "host_key.pub").read_text().strip()
    (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    (ssh / "config").write_text(f"Host {ALIAS}\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {ssh}/id_ed25519\n")
    return folder / "home"


def why_no_sshd() -> str | None:
    """Say why OpenSSH's server cannot be run here."""
    if shutil.which("sshd") is None:
        return "sshd is not on PATH: apt-get install openssh-server"
    return None if os.geteuid() == 0 else "sshd needs root"


@contextmanager
def asyncssh_server(folder: Path) -> Iterator[int]:
    """Run the server of asyncssh; its port."""
    command = [sys.executable, "-P", __file__, str(folder)]
    path = os.pathsep.join(part for part in sys.path if part)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], START_TIMEOUT_S)[0], "the SSH server did not start in time"
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def openssh_server(folder: Path) -> Iterator[int]:
    """Run OpenSSH's sshd; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    Path("/run/sshd").mkdir(exist_ok=True)
    lines = [
        f"ListenAddress 127.0.0.1:{port}",
        f"HostKey {folder}/host_key",
        f"AuthorizedKeysFile {folder}/authorized_keys",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "StrictModes no",
        "PidFile none",
        "UsePAM no",
    ]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    command = [str(shutil.which("sshd")), "-D", "-e", "-f", f"{folder}/sshd_config"]
    with subprocess.Popen(command) as process:
        try:
            _await_port(port, process)
            yield port
        finally:
            process.terminate()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, "sshd has ended"
            assert time.monotonic() < deadline, "sshd did not start in time"
            time.sleep(0.1)


async def serve(folder: Path) -> None:
    """Let the user's key in, and run what it asks for."""
    import asyncssh

    async def handle(process: asyncssh.SSHServerProcess[bytes]) -> None:
        child = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            process.command or "true",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        feeding = asyncio.create_task(feed(process.stdin, child.stdin))
        await asyncio.gather(show(child.stdout, process.stdout), show(child.stderr, process.stderr))
        feeding.cancel()
        process.exit(await child.wait())

    async def feed(source: asyncssh.SSHReader[bytes], sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        sink.close()  # the channel is closed, or its input

    async def show(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "authorized_keys"),
        process_factory=handle,
        encoding=None,
    )
    print(server.get_port(), flush=True)
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
