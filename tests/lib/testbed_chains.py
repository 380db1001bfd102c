"""Small testbeds of two hosts in namespaces, by `thc testbed run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TIME_LIMIT_S = 200
_HOST = '[[hosts]]\nname = "{name}"\nmanagement_ip = "10.78.0.{number}"\nworkers = {workers}\n'
_NIC = 'nics = [{{ ip = "10.77.0.{number}" }}]\n'


def run_chain(
    folder: Path,
    aggregator: str,
    transport: str,
    launcher: str,
    command: Sequence[str],
    *,
    workers: int = 1,
    results: bool = False,
) -> str:
    """What `thc testbed run --down` prints. transport: lines of that section; workers: of each host."""
    names = ("a", "b", "ps") if aggregator == "thc-ps" else ("a", "b")
    hosts = "".join(
        (_HOST + _NIC).format(name=name, number=1 + number, workers=0 if name == "ps" else workers)
        for number, name in enumerate(names)
    )
    lines = [
        f'name = "chain{os.getpid() % 100000}"\nreach = "namespaces"\n{hosts}',
        f'[aggregator]\nkind = "{aggregator}"' + ('\nhosts = ["ps"]' if aggregator == "thc-ps" else ""),
        f"[transport]\n{transport}",
        f'[training]\nlauncher = "{launcher}"\ncommand = {json.dumps(list(command))}\nresults = {str(results).lower()}',
    ]
    file = folder / "testbed.toml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    finished = subprocess.run(
        [sys.executable, "-P", "-m", "byteps_thc", "testbed", "run", "--down", str(file)],
        env=os.environ | {"XDG_STATE_HOME": str(folder / "state")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout
