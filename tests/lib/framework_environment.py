"""A Python of its own for frameworks: what is installed here, torch among it, and what a file of requirements names."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "docs/examples/requirements.txt"
INSTALL_TIMEOUT_S = 1200
#: What pip says where there is no index for it to ask, or one that has not heard of the package.
NO_INDEX = ("NewConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "(from versions: none)")


def framework_python() -> Path:
    """The interpreter of the environment, which is made the first time; skips, with the reason, where pip has no index.

    It is kept in build/, under the digest of what it was made from.
    """
    site = sysconfig.get_path("purelib")
    made_from = "\n".join([REQUIREMENTS.read_text(encoding="utf-8"), sys.version, site])
    folder = ROOT / "build/frameworks" / hashlib.sha256(made_from.encode()).hexdigest()[:16]
    python, stamp = folder / "bin/python", folder / "installed"
    if stamp.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version / "site-packages/installed_here.pth").write_text(f"{site}\n", encoding="utf-8")
    command = [
        str(python),
        "-P",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--retries",
        "1",
        "--requirement",
        str(REQUIREMENTS),
    ]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    if installed.returncode != 0:
        said = installed.stdout + installed.stderr
        if any(words in said for words in NO_INDEX):
            pytest.skip(f"pip reaches no index that has the frameworks: {said.strip().splitlines()[-1]}")
        pytest.fail(said)
    stamp.touch()
    return python
