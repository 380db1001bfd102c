"""What a build was made from, as one hash: the same hash means there is nothing to do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def digest(repository: Path, paths: Iterable[str], *values: object) -> str:
    """Return a SHA-256 over the files at or below `paths` (relative to the repository) and the values."""
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
