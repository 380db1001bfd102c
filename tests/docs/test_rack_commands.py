"""The commands of ps_software/README.md, "Racks", run as they stand there, in a network of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from byteps_thc._cli.launch import find_thc_ps

ROOT = Path(__file__).parents[2]
_TEXT = (ROOT / "ps_software/README.md").read_text(encoding="utf-8")
[COMMANDS] = re.findall(r"^```\n(.*?)^```", _TEXT.partition("## Racks\n")[2], flags=re.MULTILINE | re.DOTALL)
WORKERS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from byteps_thc import Compressor, GradientAverager, Session, ThcConfig

def train(worker):
    server = "10.0.1.9" if worker < 4 else "10.0.2.9"
    with Session([server], job=1, worker=worker, workers=8, config=ThcConfig()) as session:
        gradient = {"w": np.full(10_000, worker, np.float32)}
        GradientAverager(session, Compressor(ThcConfig(), workers=8, worker=worker)).average(gradient)
        return gradient["w"]

with ThreadPoolExecutor(8) as pool:
    averages = list(pool.map(train, range(8)))
assert all(np.array_equal(average, averages[0]) for average in averages)
assert abs(averages[0].mean() - 3.5) < 0.1, averages[0].mean()
"""


def can_make_networks() -> bool:
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=10, check=False).returncode == 0


@pytest.mark.skipif(not can_make_networks(), reason="no network namespaces here")
def test_commands() -> None:
    lines = COMMANDS.splitlines()
    addresses = re.findall(r"--listen ([\d.]+)", COMMANDS)
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
