"""Network namespaces that end with the process that made them, and are named after it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from byteps_thc.errors import ConfigurationError, ThcError
from thc_lab.testbed.hosts.namespaces import FOLDER, add, remove, why_not

#: Of /proc/PID/stat, from behind the command's name: the state, and when the process was started, in clock ticks.
_STATE, _START = 0, 19

#: Number of the process; when it was started, because a number is given again to a later process; and which host or
#: container numbers it so, because containers may share namespaces' names.
_NAME = re.compile(r"thc(?P<pid>\d{1,9})\.(?P<start>\d+)\.(?P<pids>\d+)-.+")


class Namespaces:
    """A context manager that removes the namespaces made meanwhile, and the cables between them.

    Those of processes that were killed are removed when the context is entered. Raises ConfigurationError when this
    process may not make any, or has no `ip` command.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._prefix = name_prefix()
        if (reason := why_not()) is not None:
            raise ConfigurationError(reason)

    def __enter__(self) -> Namespaces:
        remove_leftovers()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str) -> str:
        """Make a namespace, named after `name` and this process; returns its name."""
        full = self._prefix + name
        self._stack.callback(delete, full)  # before: a signal may come while it is made
        add(full)
        return full


def name_prefix() -> str:
    """What the names of this process's namespaces begin with."""
    return f"thc{os.getpid()}.{_start_ticks()}.{_pid_namespace()}-"


def find_leftovers(folder: Path = FOLDER) -> list[str]:
    """Return the names of namespaces whose process is gone."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:  # this host never had any
        return []
    pids = _pid_namespace()
    ours = [match for name in names if (match := _NAME.fullmatch(name)) and match["pids"] == pids]
    return [match[0] for match in ours if not _alive(match["pid"], match["start"])]


def remove_leftovers() -> None:
    """Remove what find_leftovers() returns. Needs root."""
    for name in find_leftovers():
        delete(name)


def delete(name: str) -> None:
    """Remove a namespace, if it is there and can be; another process may be removing the same leftovers."""
    with contextlib.suppress(ThcError):
        remove(name)


def _alive(pid: str, start_ticks: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's, which /proc may hide
        pass
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    fields = stat.rpartition(")")[2].split()
    return fields[_STATE] not in "ZX" and start_ticks == fields[_START]


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _start_ticks() -> str:
    return Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[_START]
