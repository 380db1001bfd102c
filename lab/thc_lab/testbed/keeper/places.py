"""Folders on the way to a path, opened one by one, so that nobody can put something else in their place meanwhile.

The keeper is root at times, and its files are in folders such as /var/tmp where everybody may make folders and links.
Each folder and link on the way has to be root's or this user's, and a folder writable by all only where a sticky bit
keeps what is in it. host_scripts.py has the same for shells.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Callable, Iterator

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
#: Of struct statx, the same on all architectures.
_STATX_BYTES, _STATX_BTIME_OFFSET = 256, 80
_STATX_BTIME, _AT_SYMLINK_NOFOLLOW = 0x800, 0x100

#: Makes a missing folder: descriptor of the one that it is to be in, its name, its path.
Make = Callable[[int, str, str], None]


def parts_of(path: str) -> list[str]:
    """Names on the way to an absolute path. PermissionError for one with "..", which leads elsewhere."""
    parts = path.split("/")
    if parts[0] or len(parts) < 2 or not all(parts[1:]) or {".", ".."} & set(parts):
        raise PermissionError(f"{path!r} is refused: it has to be an absolute path without '.', '..' and '//'")
    return parts[1:]


@contextlib.contextmanager
def opened_parent(path: str, make: Make | None = None) -> Iterator[tuple[int, str, str]]:
    """Descriptor of the folder that a path is in, that folder without links, and the path's own name.

    make: for each folder that is missing on the way. FileNotFoundError without. PermissionError: the path leads through
    what is another user's.
    """
    *left, name = parts_of(path)
    here, descriptor, links = "/", os.open("/", _FOLDER_FLAGS), 0
    try:
        while left:
            part = left.pop(0)
            target = _link_target(descriptor, part, here)
            if target is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise PermissionError(f"{path} leads through too many links")
                left = [each for each in target.split("/") if each not in ("", ".")] + left
                new, where = (
                    (os.open("/", _FOLDER_FLAGS), "/") if target.startswith("/") else (os.dup(descriptor), here)
                )
            else:
                where = _path_of(here, part)
                if make is not None and not _is_there(descriptor, part):
                    make(descriptor, part, where)
                new = _open_folder(descriptor, part, where)
            os.close(descriptor)
            descriptor, here = new, where
        yield descriptor, here, name
    finally:
        os.close(descriptor)


def open_own(folder: int, name: str, where: str, flags: int) -> int:
    """Open what is in a folder of opened_parent(), if it is this user's: a regular file with one name, or a folder.

    PermissionError when it is a link, another user's, or has another name, by which it may be somebody's else.
    """
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _not_ours(where) from error
    status = os.fstat(descriptor)
    regular = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    if status.st_uid != os.geteuid() or not (regular or stat.S_ISDIR(status.st_mode)):
        os.close(descriptor)
        raise _not_ours(where)
    return descriptor


def read_own(path: str) -> str:
    """Contents of a file of this user."""
    with (
        opened_parent(path) as (folder, where, name),
        os.fdopen(open_own(folder, name, f"{where}/{name}", os.O_RDONLY), encoding="utf-8") as file,
    ):
        return file.read()


def identity_of(folder: int, name: str) -> tuple[int, int, int] | None:
    """Device, inode and birth of what has a name in a folder; None: nothing has.

    An inode number is soon another file's, when a file is gone; its birth, in nanoseconds, is not. 0: the file system
    does not say.
    """
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, _birth_ns(folder, name)


def _birth_ns(folder: int, name: str) -> int:
    """By statx(2), which Python does not have."""
    statx = getattr(ctypes.CDLL(None), "statx", None)
    found = ctypes.create_string_buffer(_STATX_BYTES)
    flags = ctypes.c_uint(_AT_SYMLINK_NOFOLLOW)
    if statx is None or statx(folder, os.fsencode(name), flags, ctypes.c_uint(_STATX_BTIME), found) != 0:
        return 0
    (mask,) = struct.unpack_from("=I", found, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _STATX_BTIME_OFFSET)
    return int(seconds) * 10**9 + int(nanoseconds) if mask & _STATX_BTIME else 0


def _is_there(folder: int, name: str) -> bool:
    return identity_of(folder, name) is not None


def _link_target(folder: int, name: str, here: str) -> str | None:
    """Where a link leads; None: it is none. PermissionError for a link of another user."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(status.st_mode):
        return None
    if status.st_uid not in (0, os.geteuid()):
        raise _not_ours(_path_of(here, name))
    return os.readlink(name, dir_fd=folder)


def _path_of(here: str, part: str) -> str:
    """Of what is in a folder; part may be "..", of a link."""
    return (here.rpartition("/")[0] or "/") if part == ".." else f"{here.rstrip('/')}/{part}"


def _open_folder(folder: int, name: str, where: str) -> int:
    try:
        descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:  # a link, or a file
        raise PermissionError(f"{where}: {error.strerror}; remove it, or name another run folder") from error
    status = os.fstat(descriptor)
    if status.st_uid not in (0, os.geteuid()):
        os.close(descriptor)
        raise _not_ours(where)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        os.close(descriptor)
        raise PermissionError(f"{where} may be written by all: others could put their files there; chmod o-w, or +t")
    return descriptor


def _not_ours(where: str) -> PermissionError:
    return PermissionError(f"{where} is there already, and not this user's: remove it, or name another run folder")
