"""`python -m thc_lab.testbed.keeper COMMAND`: a line of JSON on standard input, lines of JSON as answer.

Every request has the "folder" of the records on this host, below the user's state folder ($XDG_STATE_HOME).
The answer is {"result": ...} or {"error": "..."}.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thc_lab.testbed.keeper import ending, files, following, places
from thc_lab.testbed.keeper.probe import probe
from thc_lab.testbed.keeper.records import Records, age_s, pids_of, state_of
from thc_lab.testbed.keeper.supervisor import start


def records_of(folder: str) -> Records:
    """The records of a testbed on this host: in the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Records(Path(state).expanduser() / "byteps_thc" / "testbed" / folder)


def _start(records: Records, request: dict[str, Any]) -> Any:
    record, new = start(records, request["name"], request["argv"], request["environment"], request["cwd"])
    return {"pid": record.pid, "new": new}


def _list(records: Records, _: dict[str, Any]) -> Any:
    return [
        {
            "name": record.name,
            "pid": record.pid,
            "state": state_of(record, records),
            "status": records.status(record.name),
            "age_s": age_s(record),
            "argv": record.argv,
        }
        for record in records.all()
    ]


def _stop(records: Records, request: dict[str, Any]) -> Any:
    names = request["names"]
    return ending.stop(records, [r.name for r in records.all()] if names is None else names, request["grace_s"])


def _remove(records: Records, _: dict[str, Any]) -> Any:
    """Files and records, of a testbed whose processes have ended: without its record, nobody finds a process again.

    Paths that are not what the testbed has made any more, and stay.
    """
    left = [record.name for record in records.all() if state_of(record, records) == "running" or pids_of(record)]
    if left:
        raise OSError(f"{', '.join(left)} still run: nothing is removed")
    stay = files.remove_all(records.folder)
    if records.folder.is_dir():
        shutil.rmtree(records.folder)
    return stay


COMMANDS: dict[str, Callable[[Records, dict[str, Any]], Any]] = {
    "start": _start,
    "list": _list,
    "stop": _stop,
    "remove": _remove,
    "put": lambda records, request: files.put(records.folder, request["files"]),
    "read": lambda _, request: places.read_own(request["path"]),
    "wait": lambda records, request: following.wait_ready(
        records, request["name"], request["pattern"], request["timeout_s"]
    ),
    "tail": lambda records, request: following.tail(records, request["name"], request["count"]),
    "probe": lambda _, request: probe(request["programs"], request["listens"]),
}


def main() -> None:
    """Answer one request; `watch` answers until there is nothing more to watch."""
    command = sys.argv[1]
    request = json.loads(sys.stdin.buffer.readline())
    records = records_of(request["folder"])
    if command == "watch":
        events = following.watch(records, request["names"], follow=request["follow"], last_lines=request["last_lines"])
        for event in events:
            print(json.dumps(event), flush=True)
        return
    try:
        answer = {"result": COMMANDS[command](records, request)}
    except (OSError, ValueError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
