"""Files that a testbed puts on a host, and takes away again: those that it has made, and no others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from byteps_thc.tools.testbed.keeper.places import identity_of, open_own, opened_parent

#: In the folder of the records: what was not there before, a line of JSON each, in the order in which it was made.
_LIST = "made-files.list"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class Made:
    """What was made. path: without links. whole: it goes with all that is in it. Numbers of 0: about to be made."""

    path: str
    whole: bool
    device: int = 0
    inode: int = 0
    birth_ns: int = 0

    @property
    def identity(self) -> tuple[int, int, int] | None:
        """As identity_of(); None: nobody has seen it made."""
        return (self.device, self.inode, self.birth_ns) if self.inode else None


def put(folder: Path, files: list[dict[str, Any]]) -> None:
    """Write files ({"path", "text", "mode"}), or make folders (without text). remove_all() removes what is made new.

    PermissionError for what is there and another user's, also on the way to it: it may be a trap, in a folder that all
    may write to. What is made is this user's alone.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def make_above(parent: int, name: str, where: str) -> None:
        _make_folder(folder, parent, name, Made(where, whole=False), 0o700)

    for file in files:
        with opened_parent(file["path"], make_above) as (parent, above, name):
            made = Made(f"{above.rstrip('/')}/{name}", whole=True)
            if file["text"] is None:
                _put_folder(folder, parent, name, made, file["mode"] | 0o100)
            else:
                _put_file(folder, parent, name, made, file["mode"], file["text"])


def remove_all(folder: Path) -> list[str]:
    """Remove what put() has made; what was there before stays, and so does a folder above it that is not empty.

    Returns the paths that are something else by now, and were left alone.
    """
    left = []
    for made in reversed(list(_read(folder).values())):
        try:
            with opened_parent(made.path) as (parent, _, name):
                if not _remove(parent, name, made):
                    left.append(made.path)
        except FileNotFoundError:  # gone, with the folder that it was in
            continue
        except PermissionError:
            left.append(made.path)
    (folder / _LIST).unlink(missing_ok=True)
    return left


def _put_folder(records: Path, parent: int, name: str, made: Made, mode: int) -> None:
    if identity_of(parent, name) is None:
        _make_folder(records, parent, name, made, mode)
        return
    descriptor = open_own(parent, name, made.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
    if found & _OTHERS & ~mode:
        raise PermissionError(f"{made.path} is there already with mode {found:o}: chmod {mode:o}, or name another one")


def _make_folder(records: Path, parent: int, name: str, made: Made, mode: int) -> None:
    _remember(records, made)  # before: this process may be killed
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError as error:
        raise _made_by_others(made) from error
    _remember_made(records, parent, name, made)


def _put_file(records: Path, parent: int, name: str, made: Made, mode: int, text: str) -> None:
    if identity_of(parent, name) is None:
        _remember(records, made)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, mode, dir_fd=parent)
        except FileExistsError as error:
            raise _made_by_others(made) from error
        _remember_made(records, parent, name, made)
    else:
        descriptor = open_own(parent, name, made.path, os.O_WRONLY)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        file.truncate(0)
        file.write(text)


def _remove(parent: int, name: str, made: Made) -> bool:
    """Whether it is gone, or was nobody's to remove. False: it is not what was made."""
    found = identity_of(parent, name)
    if found is None:
        return True
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if made.identity is None or not made.whole:
        # Made without being seen, or a folder above: another one's files may be in it.
        if made.identity in (None, found) and status.st_uid == os.geteuid():
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=parent)
        return not made.whole or identity_of(parent, name) is None
    if found != made.identity:
        return False
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)
    return True


def _made_by_others(made: Made) -> PermissionError:
    return PermissionError(f"{made.path} was made by another process just now: remove it, or name another run folder")


def _remember_made(records: Path, parent: int, name: str, made: Made) -> None:
    identity = identity_of(parent, name)
    if identity is not None:
        _remember(records, Made(made.path, made.whole, *identity))


def _remember(records: Path, made: Made) -> None:
    with (records / _LIST).open("a", encoding="utf-8") as listed:
        listed.write(json.dumps(astuple(made)) + "\n")


def _read(records: Path) -> dict[str, Made]:
    """By path; what was made last is what counts, and its place is that of the first."""
    made: dict[str, Made] = {}
    for line in _lines(records / _LIST):
        one = Made(*json.loads(line))
        made[one.path] = one
    return made


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
