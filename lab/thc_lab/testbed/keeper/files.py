"""Files that a testbed puts on a host, and takes away again: those that it has made, and no others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from thc_lab.testbed.keeper.places import identity_of, open_own, opened_parent

#: In the folder of the records: what was not there before, a line of JSON each; a path alone was not made after all.
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
    may write to. What is made is this user's alone. Other keepers, of hosts that are this machine, may do the same at
    the same time, with records of their own.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def make_above(parent: int, name: str, where: str) -> None:
        made = Made(where, whole=False)
        if not _make_folder(folder, parent, name, made, 0o700):
            _forget(folder, made)

    for file in files:
        with opened_parent(file["path"], make_above) as (parent, above, name):
            made = Made(f"{above.rstrip('/')}/{name}", whole=True)
            if file["text"] is None:
                _put_folder(folder, parent, name, made, file["mode"] | 0o100)
            else:
                _put_file(folder, parent, name, made, file["mode"], file["text"])


def remove_all(folder: Path) -> list[str]:
    """Remove what put() has made; what was there before stays, and so does a folder above it that is not empty.

    Returns the paths that are something else by now, and were left alone. Other keepers of the testbed, of hosts that
    are this machine, may have files in a folder above: the last of them removes it.
    """
    left: list[str] = []
    above: list[Made] = []
    for made in sorted(_read(folder).values(), key=lambda made: made.path.count("/"), reverse=True):
        try:
            with opened_parent(made.path) as (parent, _, name):
                if not _remove(parent, name, made):
                    left.append(made.path)
                elif made.identity is not None and made.identity == identity_of(parent, name):
                    above.append(made)
        except FileNotFoundError:  # gone, with the folder that it was in
            continue
        except PermissionError:
            left.append(made.path)
    for other in folder.parent.glob(f"*/{_LIST}"):
        if other.parent != folder:
            _pass_on(other.parent, above)
    (folder / _LIST).unlink(missing_ok=True)
    return left


def _put_folder(records: Path, parent: int, name: str, made: Made, mode: int) -> None:
    there = identity_of(parent, name) is not None
    if not there and _make_folder(records, parent, name, made, mode):
        return
    descriptor = open_own(parent, name, made.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
    if found & _OTHERS & ~mode:
        raise PermissionError(f"{made.path} is there already with mode {found:o}: chmod {mode:o}, or name another one")
    if not there:
        _forget(records, made)


def _make_folder(records: Path, parent: int, name: str, made: Made, mode: int) -> bool:
    """False: somebody was faster, such as the keeper of another host that is this machine. It may be a trap, too."""
    _remember(records, made)  # before: this process may be killed
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:
        return False
    _remember_made(records, parent, name, made)
    return True


def _put_file(records: Path, parent: int, name: str, made: Made, mode: int, text: str) -> None:
    there = identity_of(parent, name) is not None
    descriptor = None if there else _make_file(records, parent, name, made, mode)
    if descriptor is None:
        descriptor = open_own(parent, name, made.path, os.O_WRONLY)
        if not there:
            _forget(records, made)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        file.truncate(0)
        file.write(text)


def _make_file(records: Path, parent: int, name: str, made: Made, mode: int) -> int | None:
    """Its descriptor; None: as False of _make_folder()."""
    _remember(records, made)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, mode, dir_fd=parent)
    except FileExistsError:
        return None
    _remember_made(records, parent, name, made)
    return descriptor


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


def _remember_made(records: Path, parent: int, name: str, made: Made) -> None:
    identity = identity_of(parent, name)
    if identity is not None:
        _remember(records, Made(made.path, made.whole, *identity))


def _forget(records: Path, made: Made) -> None:
    """Whoever was faster to make it removes it."""
    _append(records, [made.path])


def _pass_on(records: Path, above: list[Made]) -> None:
    known = _read(records)
    for made in above:
        if made.path not in known:
            _remember(records, made)


def _remember(records: Path, made: Made) -> None:
    _append(records, astuple(made))


def _append(records: Path, entry: Sequence[Any]) -> None:
    with (records / _LIST).open("a", encoding="utf-8") as listed:
        listed.write(json.dumps(entry) + "\n")


def _read(records: Path) -> dict[str, Made]:
    """By path; the last that was written of one is what counts."""
    made: dict[str, Made] = {}
    for line in _lines(records / _LIST):
        path, *rest = json.loads(line)
        if rest:
            made[path] = Made(path, *rest)
        else:
            made.pop(path, None)
    return made


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
