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
_TEXT = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
SECTION = re.split(r"^##+ ", _TEXT.partition("### Starting a BytePS training\n")[2], flags=re.MULTILINE)[0]


def can_make_networks() -> bool:
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=10, check=False).returncode == 0


@pytest.mark.timeout(300)
@pytest.mark.byteps
@pytest.mark.skipif(not can_make_networks(), reason="no network namespaces here: the ports of the guide may be in use")
def test_commands(tmp_path: Path) -> None:
    [commands] = re.findall(r"^```sh\n(.*?)^```", SECTION, flags=re.MULTILINE | re.DOTALL)
    script = tmp_path / "commands.sh"
    script.write_text(commands, encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_", "THC_"))}
    with (tmp_path / "output").open("wb") as output:
        running = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec bash -eu "$0"', str(script)],
            cwd=ROOT,
            env=inherited | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
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
    losses = [float(loss) for loss in re.findall(r"step (?:1|20): loss ([\d.]+)", text)]
    assert len(losses) == 2, text
    assert losses[1] < losses[0] - 0.5, text
    for job in (1, 2):  # a lane each
        assert f"job {job} started: 2 workers" in text
        assert f"job {job} ended: all workers have left" in text


def test_tables_have_every_variable() -> None:
    documented = set(re.findall(r"^\| `THC_(\w+)`", _TEXT, flags=re.MULTILINE))
    assert documented == set(NAMES)
    exported = set(re.findall(r"\b((?:DMLC|THC)_\w+)=", SECTION))
    in_tables = set(re.findall(r"`(DMLC_\w+)`", "".join(re.findall(r"^\|.*\n", SECTION, flags=re.MULTILINE))))
    assert exported <= in_tables | {f"THC_{name}" for name in NAMES}
