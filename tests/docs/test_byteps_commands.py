"""The commands of the BytePS guide run as they stand there, in a network of their own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from byteps_thc._scheme.environment import NAMES

ROOT = Path(__file__).parents[2]
DEADLINE_S = 250.0
GUIDE = ROOT / "docs/byteps.md"
_TEXT = GUIDE.read_text(encoding="utf-8")
START = re.split(r"^## ", _TEXT.partition("## Start it\n")[2], flags=re.MULTILINE)[0]
COMMANDS = re.findall(r"^```sh\n(.*?)^```", START, flags=re.MULTILINE | re.DOTALL)


def can_make_networks() -> bool:
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=10, check=False).returncode == 0


@pytest.mark.byteps
@pytest.mark.skipif(not can_make_networks(), reason="no network namespaces here: the ports of the guide may be in use")
def test_commands(tmp_path: Path) -> None:
    script = tmp_path / "commands.sh"
    script.write_text(COMMANDS[0], encoding="utf-8")
    [program, output] = re.findall(r"^```(?:python|text)\n(.*?)^```", _TEXT, flags=re.MULTILINE | re.DOTALL)[:2]
    (tmp_path / "step.py").write_text(program, encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_", "THC_"))}
    with (tmp_path / "output").open("wb") as log:
        running = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec bash -eu "$0"', str(script)],
            cwd=tmp_path,
            env=inherited | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            status = running.wait(DEADLINE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    text = (tmp_path / "output").read_text(encoding="utf-8", errors="replace")
    assert status == 0, text
    assert re.search(re.sub(r"\d+", r"\\d+", re.escape(output.strip())), text), text
    for job in (1, 2):  # a lane each
        assert f"job {job} started: 2 workers" in text
        assert f"job {job} ended: all workers have left" in text


def test_variables_of_the_commands_are_explained() -> None:
    exported = set(re.findall(r"\b((?:DMLC|BYTEPS|THC)_\w+)=", "".join(COMMANDS)))
    in_table = set(re.findall(r"`((?:DMLC|BYTEPS)_\w+)`", "".join(re.findall(r"^\|.*\n", _TEXT, flags=re.MULTILINE))))
    assert exported <= in_table | {f"THC_{name}" for name in NAMES}
