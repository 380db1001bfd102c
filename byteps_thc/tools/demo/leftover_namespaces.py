"""Network namespaces of runs that were killed. A namespace is named after the process that made it (Namespaces)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

FOLDER = Path("/run/netns")
_DELETE_TIMEOUT_S = 10.0

#: Of /proc/PID/stat, from behind the command's name: the state, and when the process was started, in clock ticks.
_STATE, _START = 0, 19

#: Number of the process; when it was started, because a number is given again to a later process; and which host or
#: container numbers it so, because containers may share namespaces' names.
_NAME = re.compile(r"thc(?P<pid>\d{1,9})\.(?P<start>\d+)\.(?P<pids>\d+)-.+")


def name_prefix() -> str:
    """What the names of this process's namespaces begin with."""
    return f"thc{os.getpid()}.{_start_ticks()}.{_pid_namespace()}-"


def find(folder: Path = FOLDER) -> list[str]:
    """Return the names of namespaces whose process is gone."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:  # this host never had any
        return []
    pids = _pid_namespace()
    ours = [match for name in names if (match := _NAME.fullmatch(name)) and match["pids"] == pids]
    return [match[0] for match in ours if not _alive(match["pid"], match["start"])]


def remove() -> list[str]:
    """Remove what find() returns; returns the names. Needs root."""
    names = find()
    for name in names:
        delete(name)
    return names


def delete(name: str) -> None:
    """Remove a namespace's name, if it is there. Interfaces in it go with the last process that is in it."""
    subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=_DELETE_TIMEOUT_S, check=False)


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
