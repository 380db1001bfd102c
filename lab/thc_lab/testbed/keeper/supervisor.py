"""Starts a process that outlives the command that starts it, under a supervisor that sees how it ends."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from thc_lab.testbed.keeper.ending import end_all
from thc_lab.testbed.keeper.records import TOKEN_VARIABLE, Record, Records, new_record, state_of

#: For what a process has left behind when it ends by itself.
_LEFT_BEHIND_GRACE_S = 2.0
#: Settings of byteps_thc and BytePS. A login's own must not reach processes whose plan does not have them.
_PLANNED_PREFIXES = ("THC_", "BYTEPS_", "DMLC_", "PS_")
#: Keeps setproctitle from overwriting the environment of a process, in which its token is.
_KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}


def start(
    records: Records, name: str, argv: Sequence[str], environment: Mapping[str, str], folder: str | None
) -> tuple[Record, bool]:
    """Start a process, with its output in a file; one that runs already is left alone.

    environment: added to this process's, where the folder of this Python is the first of PATH, and without the settings
    of byteps_thc and BytePS that it has. Returns its record, and whether it was started now. OSError when it cannot be
    started.
    """
    known = records.read(name)
    if known is not None and state_of(known, records) == "running":
        return known, False
    records.begin(name)
    reader, writer = os.pipe()
    if (first := os.fork()) == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                os.close(reader)
                _supervise(records, name, list(argv), _whole(environment), folder, writer)
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(first, 0)
    with os.fdopen(reader, encoding="utf-8") as answers:
        answer = json.loads(answers.read() or '{"error": "its supervisor has died"}')
    if "error" in answer:
        raise OSError(answer["error"])
    record = records.read(name)
    assert record is not None
    return record, True


def _supervise(
    records: Records, name: str, argv: list[str], environment: dict[str, str], folder: str | None, writer: int
) -> None:
    """What the supervisor does, from the start of the process to its end; runs in a process of its own."""
    _detach(records.log(name))
    token = secrets.token_hex(16)
    try:
        process = subprocess.Popen(
            argv,
            env=environment | {TOKEN_VARIABLE: token},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        record = new_record(name, process.pid, token, argv)
        records.write(record)
    except OSError as error:
        os.write(writer, json.dumps({"error": str(error)}).encode())
        return
    os.write(writer, b"{}")
    os.close(writer)
    status = process.wait()
    end_all([record], _LEFT_BEHIND_GRACE_S)
    records.write_status(name, status)


def _detach(log: Path) -> None:
    """Let go of the terminal or connection, so that it can end before this process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, number)
    os.chdir("/")


def _whole(environment: Mapping[str, str]) -> dict[str, str]:
    path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_PLANNED_PREFIXES)}
    return inherited | _KEEP_ENVIRONMENT | {"PATH": os.pathsep.join(path)} | dict(environment)
