"""Commands of the BytePS guide and of ps_software/README.md, "Racks", run verbatim in a network of their own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from byteps_thc._base.environment import NAMES
from byteps_thc._cli.launch import find_thc_ps

ROOT = Path(__file__).parents[2]
DEADLINE_S = 250.0
GUIDE = ROOT / "docs/byteps.md"
_TEXT = GUIDE.read_text(encoding="utf-8")
START = re.split(r"^## ", _TEXT.partition("## Start it\n")[2], flags=re.MULTILINE)[0]
COMMANDS = re.findall(r"^```sh\n(.*?)^```", START, flags=re.MULTILINE | re.DOTALL)


def can_make_networks() -> bool:
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=10, check=False).returncode == 0


needs_networks = pytest.mark.skipif(not can_make_networks(), reason="no network namespaces: ports may be in use")


@pytest.mark.byteps
@needs_networks
def test_commands_of_byteps(tmp_path: Path) -> None:
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


_RACKS = (ROOT / "ps_software/README.md").read_text(encoding="utf-8")
[RACK_COMMANDS] = re.findall(r"^```\n(.*?)^```", _RACKS.partition("## Racks\n")[2], flags=re.MULTILINE | re.DOTALL)
WORKERS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from byteps_thc import Compressor, GradientAverager, Session, ServerCodes

def train(worker):
    server = "10.0.1.9" if worker < 4 else "10.0.2.9"
    with Session([server], job=1, worker=worker, workers=8, codes=ServerCodes()) as session:
        gradient = {"w": np.full(10_000, worker, np.float32)}
        GradientAverager(session, Compressor(ServerCodes(), workers=8, worker=worker)).average(gradient)
        return gradient["w"]

with ThreadPoolExecutor(8) as pool:
    averages = list(pool.map(train, range(8)))
assert all(np.array_equal(average, averages[0]) for average in averages)
assert abs(averages[0].mean() - 3.5) < 0.1, averages[0].mean()
"""


@needs_networks
def test_commands_of_racks() -> None:
    lines = RACK_COMMANDS.splitlines()
    addresses = re.findall(r"--listen ([\d.]+)", RACK_COMMANDS)
    script = ["set -eu", "ip link set lo up", *(f"ip address add {address}/32 dev lo" for address in addresses)]
    for line in lines:
        command = line.partition("#")[0].rstrip()
        assert command.startswith("thc-ps ")
        script.append(f'{command.replace("thc-ps", str(find_thc_ps()), 1)} & servers="${{servers:-}} $!"')
    script += ["trap 'kill $servers; wait' EXIT", f'"{sys.executable}" -']
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", "\n".join(script)],
        cwd=ROOT,
        input=WORKERS,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 3
    for rack in (0, 1):
        assert (
            f"job 1 started: 8 workers; rack {rack} of 2 (workers {4 * rack}-{4 * rack + 3} of 8), root 10.0.0.9:48865"
            in done.stderr
        )
