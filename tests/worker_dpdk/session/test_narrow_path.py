"""Packets that are too large for a part of the path: the error says so."""

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


@pytest.mark.parametrize("when", ["start", "later"])
def test_the_error_says_packet_size(when: str) -> None:
    script = Path(__file__).with_name("narrow_path_worker.py")
    library = str(Path(__file__).parents[2] / "lib")
    result = subprocess.run(
        [sys.executable, "-P", str(script), when],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"PYTHONPATH": library},
    )
    assert ("a round is done" in result.stdout) == (when == "later")
    assert "ThcConfig(codes_per_packet=1024)" in result.stdout, result.stdout
    assert ("large ones never" in result.stdout) == (when == "start"), result.stdout
    assert ("get through since then" in result.stdout) == (when == "later"), result.stdout
