"""Finds shared memory of killed BytePS workers, and removes it when bpslaunch starts the next one.

A worker holds a lock on each of its files in /dev/shm (shared_memory.cc of `make byteps`), which ends with the process,
also between containers. Older builds of BytePS take no lock: files that a process of this host has mapped are in use,
too. Files of a BytePS built elsewhere have other names, and stay.

`make byteps` copies this module to byteps.plugins for bpslaunch: it imports the standard library only.
`python -m byteps.plugins.leftover_memory` removes the files.
"""

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")

#: BytePS's prefix, then DMLC_PS_ROOT_PORT (if set), DMLC_WORKER_ID and the key of the tensor.
_NAME = re.compile(r"BytePS_(?:ShM|Pcie\d+_Shm)_(?:\d+_)?\d+_\d+")


def find(folder: Path = FOLDER) -> list[Path]:
    found = []
    for path in _unmapped_files(folder):
        with _unlocked(path) as unlocked:
            if unlocked:
                found.append(path)
    return found


def remove(folder: Path = FOLDER) -> int:
    """Remove the files that no running worker uses, if this user may; return their bytes."""
    removed_bytes = 0
    for path in _unmapped_files(folder):
        with _unlocked(path) as unlocked, contextlib.suppress(OSError):  # another user's
            if unlocked:
                size_bytes = path.stat().st_size
                path.unlink()
                removed_bytes += size_bytes
    return removed_bytes


def remove_and_say() -> None:
    if removed_bytes := remove():
        print(f"Removed {removed_bytes >> 10} KiB of workers that were killed from {FOLDER}", flush=True)


def _unmapped_files(folder: Path) -> list[Path]:
    try:
        files = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    except OSError:
        return []
    mapped = _mapped_names() if files else set()
    return [path for path in files if path.name not in mapped]


def _mapped_names() -> set[str]:
    """Return BytePS's files that processes have mapped, as far as this user may look."""
    names: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            names.update(re.findall(rf"/({_NAME.pattern})$", maps.read_text(errors="replace"), flags=re.MULTILINE))
    return names


@contextlib.contextmanager
def _unlocked(path: Path) -> Iterator[bool]:
    """Whether no worker holds its lock; a worker that opens it meanwhile waits for the end of this context."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone, or another user's: state unknown
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        status = os.fstat(descriptor)
        yield stat.S_ISREG(status.st_mode) and status.st_nlink > 0
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    remove_and_say()
