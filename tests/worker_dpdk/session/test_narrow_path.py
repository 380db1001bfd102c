"""Packets that are too large for a part of the path: the error says so. Packets whose size is "auto" are not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and `ip`"
)


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    library = str(Path(__file__).parents[2] / "lib")
    return subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name(script)), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"PYTHONPATH": library},
    )


def test_auto_packets_are_those_of_workers_elsewhere_and_of_the_servers_interface() -> None:
    result = run("packet_size_workers.py")
    assert "beside 8192 other 8192" in result.stdout, result.stdout
    assert "narrow 1024" in result.stdout, result.stdout


@pytest.mark.parametrize("when", ["start", "later"])
def test_the_error_says_packet_size(when: str) -> None:
    result = run("narrow_path_worker.py", when)
    assert ("a round is done" in result.stdout) == (when == "later")
    assert "ThcConfig(codes_per_packet=1024)" in result.stdout, result.stdout
    assert ("large ones never" in result.stdout) == (when == "start"), result.stdout
    assert ("get through since then" in result.stdout) == (when == "later"), result.stdout
