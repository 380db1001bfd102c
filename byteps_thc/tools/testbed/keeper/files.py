"""Files that a testbed puts on a host, and takes away again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

#: In the folder of the records: [path, whether it goes with all that is in it] of what was not there before, in the
#: order in which it was made.
_LIST = "made-files.list"


def put(folder: Path, files: list[dict[str, Any]]) -> None:
    """Write files ({"path", "text", "mode"}), or make folders (without text). remove_all() removes what is made new.

    PermissionError for what is there and another user's: it may be a trap, in a folder that all may write to.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for file in files:
        path = Path(file["path"])
        _refuse_others(path)
        for new in _missing(path):
            _remember(folder, new, whole=new == path)  # before: this process may be killed
        if file["text"] is None:
            path.mkdir(parents=True, exist_ok=True, mode=file["mode"] | 0o100)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=file["mode"])
        path.write_text(file["text"], encoding="utf-8")


def remove_all(folder: Path) -> None:
    """Remove what put() has made; what was there before stays, and so does a folder above it that is not empty."""
    listed = folder / _LIST
    try:
        lines = listed.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for name, whole in reversed([json.loads(line) for line in lines]):
        path = Path(name)
        if not whole:
            with contextlib.suppress(OSError):  # another one's files are in it
                path.rmdir()
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    listed.unlink()


def _refuse_others(path: Path) -> None:
    if path.is_symlink() or (path.exists() and path.stat().st_uid != os.geteuid()):
        raise PermissionError(f"{path} is there already, and not this user's: remove it, or name another run folder")


def _missing(path: Path) -> list[Path]:
    """The path and the folders above it that are not there, outermost first."""
    return [each for each in (*reversed(path.parents), path) if not each.exists()]


def _remember(folder: Path, path: Path, *, whole: bool) -> None:
    with (folder / _LIST).open("a", encoding="utf-8") as listed:
        listed.write(json.dumps([str(path), whole]) + "\n")
