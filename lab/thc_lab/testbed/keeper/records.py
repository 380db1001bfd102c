"""What is known of a kept process, in files: NAME.json (which it is), NAME.log (its output), NAME.status (its end)."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
#: Of /proc/PID/stat, from behind the command's name: the state, the session, the start in clock ticks.
_STATE, _SESSION, _START = 0, 3, 19
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Record:
    """A process that was started. Its number is given again to a later one: its start and the boot tell them apart."""

    name: str
    pid: int
    #: clock ticks since the boot
    start_ticks: int
    #: the process that waits for its end
    supervisor_pid: int
    supervisor_start_ticks: int
    boot_id: str
    #: in the environment of the process and of all that it starts
    token: str
    argv: list[str]


class Records:
    """The records of a folder, which is made when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def log(self, name: str) -> Path:
        """Where the output of a process goes."""
        return self._path(name, "log")

    def begin(self, name: str) -> None:
        """Forget the process of that name, and begin an empty log."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for kind in ("json", "status"):
            self._path(name, kind).unlink(missing_ok=True)
        self.log(name).write_bytes(b"")

    def write(self, record: Record) -> None:
        """Keep a record."""
        self._replace(record.name, "json", json.dumps(dataclasses.asdict(record)))

    def write_status(self, name: str, status: int) -> None:
        """Keep an exit status, negative for a signal."""
        self._replace(name, "status", str(status))

    def read(self, name: str) -> Record | None:
        """The record of that name, or None."""
        try:
            return Record(**json.loads(self._path(name, "json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def status(self, name: str) -> int | None:
        """How the process ended; None: it has not, or nobody saw it."""
        try:
            return int(self._path(name, "status").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def all(self) -> list[Record]:
        """All records, by name."""
        names = sorted(path.stem for path in self.folder.glob("*.json") if _NAME.fullmatch(path.stem))
        return [record for name in names if (record := self.read(name)) is not None]

    def _path(self, name: str, kind: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a process: letters, digits, '.', '_' and '-'")
        return self.folder / f"{name}.{kind}"

    def _replace(self, name: str, kind: str, text: str) -> None:
        # Whole or not at all, whenever this process is killed.
        new = self._path(name, f"{kind}.new")
        new.write_text(text, encoding="utf-8")
        new.replace(self._path(name, kind))


def state_of(record: Record, records: Records) -> str:
    """`running` until its exit status is there; `ended`; or `lost`: gone, and nobody saw how."""
    if records.status(record.name) is not None:
        return "ended"
    if record.boot_id != boot_id():
        return "lost"
    there = _is_there(record.pid, record.start_ticks) or _is_there(record.supervisor_pid, record.supervisor_start_ticks)
    # The supervisor may have written it just now, and ended.
    return "running" if there else "ended" if records.status(record.name) is not None else "lost"


def new_record(name: str, pid: int, token: str, argv: list[str]) -> Record:
    """Record of a child of this process, its supervisor."""
    supervisor = os.getpid()
    return Record(name, pid, _start_ticks(pid), supervisor, _start_ticks(supervisor), boot_id(), token, argv)


def age_s(record: Record) -> float:
    """Seconds since the process was started, of one that runs; no clock that somebody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - record.start_ticks / os.sysconf("SC_CLK_TCK")


def _is_there(pid: int, start_ticks: int) -> bool:
    fields = stat_fields(pid)
    return fields is not None and fields[_STATE] not in "ZX" and int(fields[_START]) == start_ticks


def _start_ticks(pid: int) -> int:
    fields = stat_fields(pid)
    if fields is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return int(fields[_START])


def stat_fields(pid: int) -> list[str] | None:
    """Of /proc/PID/stat what is behind the command's name; None: no such process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()


def boot_id() -> str:
    """The same until the host is started anew."""
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def pids_of(record: Record) -> list[int]:
    """The process that was started, and whatever it has started, as far as it has not ended."""
    numbers = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    session = _session_of(record)
    return [pid for pid in numbers if pid != os.getpid() and _is_of(pid, record, session)]


def is_of(pid: int, record: Record) -> bool:
    """Whether a process is one of pids_of()."""
    return _is_of(pid, record, _session_of(record))


def _session_of(record: Record) -> int | None:
    """The session of the process, while it is sure that no other process has that number now."""
    if record.boot_id != boot_id():
        return None
    leader, supervisor = stat_fields(record.pid), stat_fields(record.supervisor_pid)
    if leader is not None:  # a zombie is good enough: its number is not free
        return record.pid if int(leader[_START]) == record.start_ticks else None
    its = supervisor is not None and int(supervisor[_START]) == record.supervisor_start_ticks
    return record.pid if its else None


def _is_of(pid: int, record: Record, session: int | None) -> bool:
    """By the token in its environment, or by its session: programs overwrite the one, and daemons leave the other."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return False
    if f"{TOKEN_VARIABLE}={record.token}".encode() in environment.split(b"\0"):
        return True
    fields = stat_fields(pid)
    return (
        session is not None and fields is not None and fields[_STATE] not in "ZX" and int(fields[_SESSION]) == session
    )


#: Environment variable by which processes are found that a kept one has started, whatever became of their parents.
TOKEN_VARIABLE = "THC_TESTBED_TOKEN"
