"""Runs programs of the build, and hashes its inputs."""

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_QUOTED_LINES = 40


class BuildError(Exception):
    """BytePS cannot be built here; the message has the remedy."""


def run(command: Sequence[str | Path], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None) -> None:
    """Run the command with `env` added to the environment; BuildError with the end of its output if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [str(word) for word in command]
    with log.open("w", encoding="utf-8") as output:
        try:
            status = subprocess.run(
                words, cwd=cwd, env=os.environ | dict(env or {}), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            ).returncode
        except FileNotFoundError as error:
            raise BuildError(f"{words[0]} is not installed; scripts/setup.sh byteps installs what is needed") from error
    if status:
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_QUOTED_LINES:])
        raise BuildError(f"{' '.join(words)} failed with status {status}; the end of {log}:\n{end}")


def digest(repository: Path, paths: Iterable[str], *values: object) -> str:
    total = hashlib.sha256(repr(values).encode())
    for name in sorted(paths):
        for file in _files(repository / name):
            total.update(f"{file.relative_to(repository)}\0".encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
