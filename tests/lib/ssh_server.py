"""OpenSSH's server on loopback, and an `ssh` that it lets in."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 60.0
#: Name of the server for the client.
ALIAS = "thc-test-host"


def why_no_sshd() -> str | None:
    """Say why OpenSSH's server cannot be run here."""
    if shutil.which("sshd") is None or shutil.which("ssh") is None:
        return "sshd and ssh are not on PATH: apt-get install openssh-server"
    return None if os.geteuid() == 0 else "sshd needs root"


def make_client(folder: Path, port: int) -> Path:
    """A folder for PATH whose `ssh` has the settings and the key of the test, and knows the server's key."""
    host_key = (folder / "host_key.pub").read_text().strip()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    settings = [f"Host {ALIAS}", "HostName 127.0.0.1", f"Port {port}", f"IdentityFile {folder}/user_key"]
    settings += [f"UserKnownHostsFile {folder}/known_hosts", "IdentitiesOnly yes", "Host *", "IdentityAgent none"]
    (folder / "ssh_config").write_text("\n".join(settings) + "\n")
    programs = folder / "client"
    programs.mkdir(exist_ok=True)
    (programs / "ssh").write_text(
        f'#!/bin/sh\nexec {shutil.which("ssh", path=os.defpath)} -F {folder}/ssh_config "$@"\n'
    )
    (programs / "ssh").chmod(0o755)
    return programs


@contextmanager
def openssh_server(folder: Path) -> Iterator[int]:
    """Run sshd with keys of its own; its port."""
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    Path("/run/sshd").mkdir(exist_ok=True)
    lines = [
        f"ListenAddress 127.0.0.1:{port}",
        f"HostKey {folder}/host_key",
        f"AuthorizedKeysFile {folder}/user_key.pub",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "StrictModes no",
        "PidFile none",
        "UsePAM no",
    ]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    with subprocess.Popen([str(shutil.which("sshd")), "-D", "-e", "-f", f"{folder}/sshd_config"]) as process:
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
