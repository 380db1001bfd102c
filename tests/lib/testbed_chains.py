"""Testbeds in namespaces, by `thc testbed run`: changes of the example, and small ones of two hosts."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from byteps_thc._base.errors import ConfigurationError
from thc_lab.namespaces import Namespaces

#: A switch in software takes seconds for a step, more where the machine is busy.
TIME_LIMIT_S = 280
_HOST = '[[hosts]]\nname = "{name}"\nmanagement_ip = "10.78.0.{number}"\nworkers = {workers}\n'
_NIC = 'nics = [{{ ip = "10.77.0.{number}" }}]\n'


def skip_without_namespaces() -> None:
    """Skip the test where no network namespaces can be made."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        with Namespaces() as made:
            made.add("probe")
    except ConfigurationError as error:
        pytest.skip(f"no network namespaces here: {error}")


def own_name() -> str:
    """Name of a testbed of this process."""
    return f"chain{os.getpid()}"


def changed(description: Path, changes: Mapping[str, str]) -> str:
    """The text of a description with a name of this process's own, and changes: pattern, of one place, -> text."""
    text = description.read_text(encoding="utf-8")
    for pattern, new in {r'name = "\w+"\nreach': f'name = "{own_name()}"\nreach', **changes}.items():
        pieces = re.split(pattern, text)
        assert len(pieces) == 2, pattern
        text = new.join(pieces)
    return text


def run_description(folder: Path, text: str) -> str:
    """Return the output of `thc testbed run` for a description, in a folder where it is written."""
    file = folder / "testbed.toml"
    file.write_text(text, encoding="utf-8")
    finished = subprocess.run(
        [sys.executable, "-P", "-m", "byteps_thc", "testbed", "run", str(file)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part), "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


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
    """Return the output of `thc testbed run`. transport: lines of that section; workers: of each of two hosts."""
    names = ("a", "b", "ps") if aggregator == "thc-ps" else ("a", "b")
    hosts = "".join(
        (_HOST + _NIC).format(name=name, number=1 + number, workers=0 if name == "ps" else workers)
        for number, name in enumerate(names)
    )
    lines = [
        f'name = "{own_name()}"\nreach = "namespaces"\n{hosts}',
        f'[aggregator]\nkind = "{aggregator}"' + ('\nhosts = ["ps"]' if aggregator == "thc-ps" else ""),
        f"[transport]\n{transport}",
        f'[training]\nlauncher = "{launcher}"\ncommand = {json.dumps(list(command))}\nresults = {str(results).lower()}',
    ]
    return run_description(folder, "\n".join(lines) + "\n")
