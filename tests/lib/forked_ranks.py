"""Dozens of ranks on a small machine: forked from one process that has imported torch, whose memory they share.

    reports = run_forked_ranks(Path(__file__).with_name("averaging_rank.py"), 66, tmp_path, settings={"steps": 3})

The program is one for ranks.run_ranks(). Processes that import torch themselves would take seconds and 200 MB each.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ranks import SETTINGS_VARIABLE, result_of

_LIBRARY = Path(__file__).parent


def run_forked_ranks(
    program: Path, ranks: int, directory: Path, *, settings: Mapping[str, Any] | None = None, timeout_s: float = 180.0
) -> list[Any]:
    """Run a program on that many ranks and return their reports; AssertionError with the log when one fails."""
    directory.mkdir(parents=True, exist_ok=True)
    launch = {"ranks": ranks, "directory": str(directory), "timeout_s": timeout_s, "settings": dict(settings or {})}
    variables = {
        "PYTHONPATH": os.pathsep.join([str(_LIBRARY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        SETTINGS_VARIABLE: json.dumps(launch),
    }
    log = directory / "ranks.log"
    with log.open("wb") as output:
        command = [sys.executable, "-P", __file__, str(program)]
        parent = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | variables, start_new_session=True
        )
        try:
            code = parent.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the ranks did not end in time:\n{log.read_text(errors='replace')}") from None
        finally:
            if parent.poll() is None:
                os.killpg(parent.pid, signal.SIGKILL)  # a group of the parent's own: it and the ranks
                parent.wait()
    assert code == 0, log.read_text(errors="replace")
    return [result_of(directory, rank) for rank in range(ranks)]


def main(program: str) -> int:
    """Fork the ranks, end all of them when one fails, and return its status."""
    import byteps_thc.engines  # noqa: F401  what ranks would import; threads start when they are needed

    launch = json.loads(os.environ[SETTINGS_VARIABLE])
    children = {_fork(program, launch | {"rank": rank}) for rank in range(launch["ranks"])}
    while children:
        child, status = os.wait()
        children.discard(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


def _fork(program: str, launch: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.environ[SETTINGS_VARIABLE] = json.dumps(launch)
        runpy.run_path(program, run_name="__main__")
        status = 0
    except BaseException:
        print(f"rank {launch['rank']}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)  # not the parent's clean-up


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
