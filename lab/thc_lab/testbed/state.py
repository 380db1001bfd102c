"""What this machine remembers of a testbed that is up: its plan, and what was done of it. A folder for each testbed."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from byteps_thc.errors import ConfigurationError
from thc_lab.testbed.process import Plan

_PLAN = TypeAdapter(Plan)


class InUseError(ConfigurationError):
    """The testbed is another command's just now: whoever gets this has started nothing, and must end nothing."""


def state_folder() -> Path:
    """$XDG_STATE_HOME/byteps_thc/testbed, or below ~/.local/state."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "byteps_thc" / "testbed"


@dataclasses.dataclass
class Journal:
    """What was begun and is not undone, written before it is done."""

    #: hosts whose namespaces were made
    namespaces: list[str] = dataclasses.field(default_factory=list)
    #: "HOST/INTERFACE" of the first ends of cables that are whole
    cables: list[str] = dataclasses.field(default_factory=list)
    #: hosts that may have files or processes
    hosts: list[str] = dataclasses.field(default_factory=list)
    #: host -> numbers of its set-up steps
    steps: dict[str, list[int]] = dataclasses.field(default_factory=dict)


class State:
    """The state of one testbed."""

    def __init__(self, name: str) -> None:
        self._folder = state_folder() / name
        self._plan = self._folder / "plan.json"
        self._journal = self._folder / "journal.json"
        self.journal = self._read_journal()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from changing the testbed meanwhile; InUseError when one does."""
        # Beside the folder, which is removed while the lock is held.
        path = self._folder.with_name(f"{self._folder.name}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = path.open("w")
        except OSError as error:
            raise _unusable(path, error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                there = path.exists() and os.path.samestat(path.stat(), os.fstat(lock.fileno()))
            except BlockingIOError:
                there = False
            if not there:  # held, or removed by who held it until now
                raise InUseError(
                    f"another `thc testbed up`, `run` or `down` is changing testbed {self._folder.name}: wait for it"
                )
            try:
                self.journal = self._read_journal()
                yield
            finally:
                path.unlink()

    @property
    def folder(self) -> Path:
        """Where it is kept; not there: this user has brought up no testbed of that name."""
        return self._folder

    def plan(self) -> Plan | None:
        """The plan of the testbed that is up; None: none is."""
        content = _read(self._plan)
        try:
            return None if content is None else _PLAN.validate_json(content)
        except ValueError as error:
            raise ConfigurationError(f"{self._plan} is of another version of byteps_thc: {error}") from error

    def begin(self, plan: Plan) -> None:
        """Keep a plan, unless one is up; keep() replaces that one.

        InUseError when the testbed is up with another: workers alone may change meanwhile.
        """
        up = self.plan()
        if up is None or not self.journal.hosts:
            self.keep(plan)
        elif _without_workers(up) != _without_workers(plan):
            raise InUseError(
                f"testbed {plan.name} is up with another description: take it down first (thc testbed down)"
            )

    def keep(self, plan: Plan) -> None:
        """Keep a plan whatever is up: its workers are the ones to come."""
        _replace(self._plan, _PLAN.dump_json(plan, indent=1))

    def write(self) -> None:
        """Keep the journal."""
        _replace(self._journal, json.dumps(dataclasses.asdict(self.journal), indent=1).encode())

    def remove(self) -> None:
        """Forget the testbed."""
        if self._folder.is_dir():
            shutil.rmtree(self._folder)
        self.journal = Journal()

    def _read_journal(self) -> Journal:
        content = _read(self._journal)
        return Journal() if content is None else Journal(**json.loads(content))


def _without_workers(plan: Plan) -> Plan:
    others = tuple(process for process in plan.processes if process.role != "worker")
    return dataclasses.replace(plan, processes=others, results=None, resolved={}, addresses=())


def _replace(path: Path, content: bytes) -> None:
    # Whole or not at all, whenever this process is killed.
    new = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_bytes(content)
        new.replace(path)
    except OSError as error:
        raise _unusable(path, error) from error


def _read(path: Path) -> bytes | None:
    """What is in a file; None: it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{error.filename or path}: {error.strerror}. `thc testbed` keeps there what it did: set XDG_STATE_HOME to "
        "a folder that this user may write to"
    )
